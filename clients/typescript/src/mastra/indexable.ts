/** Messages as the sidecar takes them, and told what of them it cannot take. */
import type { MastraDBMessage } from '@mastra/core/agent/message-list';

import { isStorableId } from '../adapters/ids.js';
import { type IndexableMessage, toIndexable } from './messages.js';
import type { Reporter } from './reporter.js';

/**
 * The message for the sidecar. `undefined` for one that is never remembered, and for one that the
 * sidecar cannot hold; that, and what else has to be left out, is a count and a line of log.
 */
export function indexableOrTold(
  message: MastraDBMessage,
  reporter: Reporter,
): IndexableMessage | undefined {
  const indexable = toIndexable(message);
  if (indexable === undefined) return undefined;
  if (!isStorableId(message.id)) {
    // By itself, not with the others: half a character in it would end their whole call.
    const sentence = 'a message has an id that the sidecar cannot hold; it is not remembered';
    reporter.failed('messagesRejected', sentence, {});
    return undefined;
  }
  const fields = { messageId: message.id };
  if (indexable.textCut) {
    const sentence = 'a text is above 262,144 bytes; its end is not searched';
    reporter.changed('textsCut', sentence, fields);
  }
  if (indexable.payloadLeftOut) {
    const sentence = 'a message is above 1 MiB or no JSON; it will come back as its text';
    reporter.changed('payloadsLeftOut', sentence, fields);
  }
  return indexable;
}
