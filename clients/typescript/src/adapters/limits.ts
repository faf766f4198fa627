/** Limits that the adapters keep to, each once. */

/** Ids that the sidecar takes as excluded from one recall; the newest are kept. */
export const EXCLUDED_IDS_MAX = 10_000;
/** Milliseconds of a turn or call that may go by while nothing answers at the address. */
export const CONNECT_TIMEOUT_MS = 1_000;
