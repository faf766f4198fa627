"""What indexes of partitions share: which partitions are in memory, and how they stay current."""
