/** Text as the sidecar takes it: well-formed UTF-8, and not above a limit. */

/** Bytes of UTF-8 that the sidecar takes as the text of one message. */
export const TEXT_BYTES_MAX = 262_144;

/** The beginning of a text that has at most so many bytes in UTF-8, cut between characters. */
export function cutToBytes(text: string, bytesMax: number): string {
  if (text.length * 3 <= bytesMax || Buffer.byteLength(text) <= bytesMax) return wellFormed(text);
  const bytes = Buffer.from(text);
  let end = bytesMax;
  while (end > 0 && ((bytes[end] ?? 0) & 0xc0) === 0x80) end -= 1;
  return bytes.toString('utf8', 0, end);
}

/** The text as UTF-8 can carry it: half of a pair of surrogates becomes U+FFFD. */
function wellFormed(text: string): string {
  return /[\ud800-\udfff]/.test(text) ? Buffer.from(text).toString() : text;
}
