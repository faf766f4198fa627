"""What a user would pick instead, each behind the same few calls; `port` says which."""
