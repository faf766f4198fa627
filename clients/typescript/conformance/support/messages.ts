import type { MastraDBMessage } from '@mastra/core/agent/message-list';

type Part = MastraDBMessage['content']['parts'][number];

/** What a message may say beside its id and text. */
export interface MessageFields {
  readonly createdAt?: Date | string;
  readonly threadId?: string;
  readonly resourceId?: string;
  /** Parts in place of one text part. */
  readonly parts?: readonly Part[];
  /** `content.content`. Default: absent. */
  readonly content?: string;
  /** `content.metadata`. */
  readonly metadata?: Record<string, unknown>;
}

let clock = Date.parse('2024-03-01T09:00:00Z');

function message(
  role: MastraDBMessage['role'],
  id: string,
  text: string,
  fields: MessageFields,
): MastraDBMessage {
  // Messages without a time follow each other by a minute.
  clock += 60_000;
  return {
    id,
    role,
    createdAt: new Date(fields.createdAt ?? clock),
    ...(fields.threadId === undefined ? {} : { threadId: fields.threadId }),
    ...(fields.resourceId === undefined ? {} : { resourceId: fields.resourceId }),
    content: {
      format: 2,
      parts: [...(fields.parts ?? [{ type: 'text', text }])],
      ...(fields.content === undefined ? {} : { content: fields.content }),
      ...(fields.metadata === undefined ? {} : { metadata: fields.metadata }),
    },
  };
}

/** A message of the person. */
export function user(id: string, text: string, fields: MessageFields = {}): MastraDBMessage {
  return message('user', id, text, fields);
}

/** A message of the model. */
export function assistant(id: string, text: string, fields: MessageFields = {}): MastraDBMessage {
  return message('assistant', id, text, fields);
}

/** A message of the application. */
export function system(id: string, text: string, fields: MessageFields = {}): MastraDBMessage {
  return message('system', id, text, fields);
}

/** A message of the person as `agent.sendMessage` stores it. */
export function userSignal(id: string, text: string, fields: MessageFields = {}): MastraDBMessage {
  return message('signal', id, text, {
    ...fields,
    metadata: { signal: { id, type: 'user', tagName: 'user', createdAt: '2024-03-01T09:00:00Z' } },
  });
}

/** A text part. */
export function text(value: string): Part {
  return { type: 'text', text: value };
}

/** A picture of one pixel. */
export function picture(): Part {
  return {
    type: 'file',
    mimeType: 'image/gif',
    data: 'R0lGODlhAQABAAAAACwAAAAAAQABAAA=',
  };
}

/** A tool call together with its result. */
export function toolResult(
  toolName: string,
  args: Record<string, unknown>,
  result: unknown,
  toolCallId = `call-of-${toolName}`,
): Part {
  return {
    type: 'tool-invocation',
    toolInvocation: { state: 'result', toolCallId, toolName, args, result },
  };
}
