// Sending a message and reading history: the path of DESIGN §3. State: that of the send rule, and
// the commands under way per user. The store publishes stored messages in their order; nothing is
// delivered from here.

import { KeyedWindow, type Pass } from "../lib/keyed-window.ts";
import { type Audience, audienceOf } from "./commands.ts";
import { COMMAND_TYPE, type ContentValidation, contentType } from "./content.ts";
import { BrokerError, type SendRefusal } from "./errors.ts";
import { assertId, assertLabel, type ChannelView, viewedKey } from "./ids.ts";
import { findMessages, type MessageQuery } from "./message-lookup.ts";
import {
  type ChannelRef,
  channelKey,
  clientMsgNoOf,
  type MessageHeader,
  type Passthrough,
} from "./model.ts";
import { checkOf, type SendTerms } from "./permissions.ts";
import type {
  AppendResult,
  ChannelStore,
  HistoryRange,
  HistorySlice,
  InboxStore,
  MessageDraft,
  MessageStore,
} from "./ports.ts";
import { createSendRule } from "./send-rule.ts";

/** Limits the copies of commands that a sender makes. */
interface CopyLimit {
  /** Called once before the copies are stored. Throws `rate_limited`. */
  admit(copies: number): void;
}

export interface SendInput {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** Undefined: made of the message's id; a retry is a new message. */
  readonly clientMsgNo: string | undefined;
  readonly header: MessageHeader & { readonly syncOnce: boolean };
  /** Seconds until it leaves history; 0 = never. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /** Restricts the recipients; only for commands. */
  readonly subscribers: readonly string[] | undefined;
  /** The sending session, which gets no push of it. */
  readonly origin: string | undefined;
  /** Undefined: unlimited, as for backends. */
  readonly copyLimit?: CopyLimit | undefined;
}

interface MessageRules extends SendTerms {
  readonly maxPayloadBytes: number;
  /** Most messages in one page of history. */
  readonly historyLimit: number;
  readonly contentValidation: ContentValidation;
}

export interface SendResult {
  readonly messageId: number;
  /** 0 if it is not stored, or a command, whose copies have a place in their inboxes. */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
}

export interface HistoryPage extends HistorySlice {
  /** The channel's newest seq. */
  readonly headSeq: number;
}

export interface Messages {
  /**
   * Resolves once the message is durable. Throws a `SendRefusal` code, `bad_id`, `bad_request`,
   * `bad_payload`, `too_large`, `unavailable`, `overloaded`, `rate_limited`. Sends of one origin
   * into one channel keep their order.
   */
  send(input: SendInput): Promise<SendResult>;
  /**
   * A page of history, the limit capped. Checks no permission: callers do. Throws `bad_id`,
   * `bad_request`.
   */
  history(view: ChannelView, range: HistoryRange): Promise<HistoryPage>;
  /** The channel's newest seq; 0: it has no message. Checks no permission. Throws `bad_id`. */
  headSeq(view: ChannelView): Promise<number>;
  /** Single messages, in seq order. Checks no permission. Throws `bad_id`. */
  find(view: ChannelView, wanted: MessageQuery): Promise<HistorySlice>;
}

/** Copies of one user's commands under way into inboxes; a larger command goes alone. */
const COPIES_AT_ONCE = 1000;
/** Commands of one user that wait for its earlier ones. */
const MAX_WAITING_COMMANDS = 4096;

export function createMessages(
  store: ChannelStore & MessageStore & InboxStore,
  rules: MessageRules,
): Messages {
  const rule = createSendRule(store, rules);
  const commands = new KeyedWindow(COPIES_AT_ONCE, MAX_WAITING_COMMANDS);

  /**
   * At once, unless an earlier command of the same origin into the same channel is still being
   * judged.
   */
  function sendMessage(draft: MessageDraft): Promise<AppendResult> {
    const turn = rule.turn(laneOf(draft.origin, draft));
    return turn === undefined ? store.append(draft) : turn.then(() => store.append(draft));
  }

  /** Its audience, or the refusal, which is found without a list of members. */
  async function judgeCommand(input: SendInput): Promise<SendRefusal | Audience> {
    const { fromUid, channel, header } = input;
    const refused = await rule.refusal(fromUid, channel, undefined);
    const { noPersist } = header;
    return refused ?? audienceOf({ ...input, noPersist }, store);
  }

  /** A session's command waits for its user's earlier ones; a backend's does not wait. */
  async function sendCommand(input: SendInput, draft: MessageDraft): Promise<AppendResult> {
    const { origin, fromUid } = input;
    if (origin === undefined) return issue(input, draft, judgeCommand(input));
    const pass = commands.enter(fromUid);
    if (pass === undefined) throw new BrokerError("overloaded");
    try {
      const judged = pass.turn.then(() => judgeCommand(input));
      return await issue(input, draft, judged, pass);
    } finally {
      pass.leave();
    }
  }

  async function issue(
    { origin, copyLimit }: SendInput,
    draft: MessageDraft,
    judged: Promise<SendRefusal | Audience>,
    pass?: Pass,
  ): Promise<AppendResult> {
    const audience = await rule.inTurn(laneOf(origin, draft), judged);
    if (typeof audience === "string") return store.append({ ...draft, permission: audience });
    const { recipients } = audience;
    pass?.weigh(Math.max(1, recipients?.length ?? 0));
    if (audience.kind === "store") {
      copyLimit?.admit(audience.recipients.length);
      return store.appendCommand({ ...draft, ...audience });
    }
    return store.append({
      ...draft,
      header: { ...draft.header, noPersist: true },
      recipients,
      permission: "granted",
    });
  }

  return {
    async send(input) {
      const isCommand = checkMessage(input, rules);
      const draft = toDraft(input, rules);
      const { messageId, messageSeq, refused } = isCommand
        ? await sendCommand(input, draft)
        : await sendMessage(draft);
      if (refused !== undefined) throw new BrokerError(refused);
      const { clientMsgNo = clientMsgNoOf(messageId) } = input;
      return { messageId, messageSeq, clientMsgNo };
    },

    async history(view, range) {
      const key = viewedKey(view);
      const limit = Math.min(range.limit, rules.historyLimit);
      const [headSeq, slice] = await Promise.all([
        store.headSeq(key),
        store.readMessages(key, { ...range, limit }),
      ]);
      const newest = range.reverse ? slice.messages[0] : slice.messages.at(-1);
      return {
        ...slice,
        headSeq: Math.max(headSeq, newest?.messageSeq ?? 0), // a message may be stored between the reads
      };
    },

    async headSeq(view) {
      return store.headSeq(viewedKey(view));
    },

    async find(view, wanted) {
      return findMessages(store, viewedKey(view), wanted);
    },
  };
}

/** One connection's sends into one channel keep their order; HTTP calls have no order. */
function laneOf(origin: string | undefined, { key }: MessageDraft): string | undefined {
  return origin === undefined ? undefined : `${origin} ${key}`;
}

/** Throws for an invalid message; returns whether it is a command. */
function checkMessage(input: SendInput, rules: MessageRules): boolean {
  assertId(input.fromUid, "from_uid");
  assertId(input.channel.id, "channel_id");
  if (input.clientMsgNo !== undefined) assertLabel(input.clientMsgNo, "client_msg_no");
  if (input.streamNo !== undefined) assertLabel(input.streamNo, "stream_no");
  if (input.tagKey !== undefined) assertLabel(input.tagKey, "tag_key");
  if (input.passthrough?.topic) assertLabel(input.passthrough.topic, "topic");
  for (const uid of input.subscribers ?? []) assertId(uid, "subscribers");
  if (input.payload.length > rules.maxPayloadBytes)
    throw new BrokerError("too_large", {
      message: `payload exceeds ${rules.maxPayloadBytes} bytes`,
      details: [{ path: "payload", message: "too large" }],
    });
  const type = contentType(input.payload, rules.contentValidation);
  const isCommand = type === COMMAND_TYPE || input.header.syncOnce;
  if (input.subscribers !== undefined && !isCommand)
    throw new BrokerError("bad_request", {
      message: "subscribers is only for commands (sync_once 1 or type 99)",
      details: [{ path: "subscribers", message: "not a command" }],
    });
  return isCommand;
}

function toDraft(input: SendInput, terms: SendTerms): MessageDraft {
  const { noPersist, redDot } = input.header;
  return {
    key: channelKey(input.channel, input.fromUid),
    channel: input.channel,
    fromUid: input.fromUid,
    clientMsgNo: input.clientMsgNo ?? "",
    header: { noPersist, redDot },
    expireS: input.expireS,
    streamNo: input.streamNo,
    tagKey: input.tagKey,
    passthrough: input.passthrough,
    payload: input.payload,
    origin: input.origin,
    recipients: undefined,
    permission: checkOf(input.fromUid, input.channel, terms),
  };
}
