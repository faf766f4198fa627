/** Ids as the sidecar takes them. */

/** Bytes of UTF-8 that the sidecar takes as an id. */
const ID_BYTES_MAX = 512;
/** Controls, ends of lines and halves of characters. */
const NOT_IN_IDS = /[\p{Cc}\p{Cs}\u2028\u2029]/u;

/** Whether the sidecar can hold a message of this id: 1 to 512 bytes of UTF-8, no controls. */
export function isStorableId(id: unknown): id is string {
  return (
    typeof id === 'string' &&
    id !== '' &&
    !NOT_IN_IDS.test(id) &&
    // Three bytes a character at most: that of nearly all ids need not be counted.
    (id.length * 3 <= ID_BYTES_MAX || Buffer.byteLength(id) <= ID_BYTES_MAX)
  );
}
