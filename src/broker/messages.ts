// Sending a message and reading history: the path of DESIGN §3. State: the lanes of connections with sends under way.
// Delivery is not called from here: the store publishes what it stored, in the order it stored it.

import { randomUUID } from "node:crypto";
import { Lanes } from "../lib/lanes.ts";
import {
  COMMAND_TYPE,
  type ContentValidation,
  contentType,
} from "./content.ts";
import { BrokerError } from "./errors.ts";
import { assertId, assertLabel } from "./ids.ts";
import {
  type ChannelRef,
  channelKey,
  GROUP_CHANNEL,
  type MessageHeader,
} from "./model.ts";
import {
  refuseGroupSend,
  refusePersonSend,
  type SendRefusal,
} from "./permissions.ts";
import type {
  Answer,
  Appended,
  ChannelStore,
  HistoryRange,
  HistorySlice,
  MessageDraft,
  MessageStore,
} from "./ports.ts";

export interface SendInput {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** Undefined: the server makes one, and a retry is a new message. */
  readonly clientMsgNo: string | undefined;
  readonly header: MessageHeader & { readonly syncOnce: boolean };
  /** Seconds until it leaves history; 0 = never. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly payload: Uint8Array;
  /** Restricts who gets it; only for commands. */
  readonly subscribers: readonly string[] | undefined;
  /** The session it came in on, which gets no push of it. */
  readonly origin: string | undefined;
}

export interface Sent {
  readonly messageId: number;
  /** 0 when the message has no place in the channel (not stored, or a command). */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
}

/** Whose history: a personal channel needs the user whose conversation with `channel.id` it is. */
export interface HistoryView {
  readonly channel: ChannelRef;
  readonly uid: string | undefined;
}

export interface HistoryPage extends HistorySlice {
  /** The channel's newest seq. */
  readonly headSeq: number;
}

export interface Messages {
  /**
   * Resolves once the message is durable. Throws a `SendRefusal` code, `bad_id`, `bad_request`, `bad_payload`, `too_large`, `unavailable`,
   * `overloaded`. Sends of one origin into one channel keep their order.
   */
  send(input: SendInput): Promise<Sent>;
  /** A page of history, the limit capped. Asks no permission: callers decide who may see. Throws `bad_id`, `bad_request`. */
  history(view: HistoryView, range: HistoryRange): Promise<HistoryPage>;
}

export interface MessageLimits {
  readonly maxPayloadBytes: number;
  /** Most messages in one page of history. */
  readonly historyLimit: number;
  readonly contentValidation: ContentValidation;
}

export function createMessages(
  store: ChannelStore & MessageStore,
  limits: MessageLimits,
): Messages {
  const lanes = new Lanes();

  /** Whether the channel's rules refuse it; at once where the store has the facts at hand. */
  function refusal(input: SendInput): Answer<SendRefusal | undefined> {
    const { channel, fromUid } = input;
    if (channel.type === GROUP_CHANNEL) {
      const facts = store.groupFacts(channel.id, fromUid);
      return facts instanceof Promise
        ? facts.then((known) => refuseGroupSend(known, fromUid))
        : refuseGroupSend(facts, fromUid);
    }
    const facts = store.personFacts(fromUid, channel.id);
    return facts instanceof Promise
      ? facts.then((known) => refusePersonSend(known, fromUid, channel.id))
      : refusePersonSend(facts, fromUid, channel.id);
  }

  /** A retry of what was accepted is answered as it was then, whatever the rules are now; anything else is refused. */
  async function unlessRetry(
    draft: MessageDraft,
    code: SendRefusal,
  ): Promise<Appended> {
    const first = draft.dedupe ? await store.earlier(draft) : undefined;
    if (first === undefined) throw new BrokerError(code);
    return first;
  }

  /** The draft as it may be appended, in the order in which the origin sent, or why it is refused. */
  async function inTurn(
    input: SendInput,
    draft: MessageDraft,
    refused: Answer<SendRefusal | undefined>,
  ): Promise<MessageDraft | SendRefusal> {
    const decided = Promise.all([refused, recipients(input)]);
    const [code, listed] =
      input.origin === undefined
        ? await decided
        : await lanes.enter(`${input.origin} ${draft.key}`, decided);
    if (code !== undefined) return code;
    return listed === undefined ? draft : { ...draft, recipients: listed };
  }

  /** The listed uids that belong to the channel [decisions: subscribers on send]; undefined: nobody is listed. */
  async function recipients({
    subscribers,
    channel,
    fromUid,
  }: SendInput): Promise<readonly string[] | undefined> {
    if (subscribers === undefined) return undefined;
    const belongs = async (uid: string): Promise<boolean> => {
      if (channel.type !== GROUP_CHANNEL)
        return uid === channel.id || uid === fromUid;
      return (await store.groupFacts(channel.id, uid)).isSubscriber;
    };
    const listed = [...new Set(subscribers)];
    const isMember = await Promise.all(listed.map(belongs));
    return listed.filter((_, at) => isMember[at]);
  }

  return {
    async send(input) {
      const isCommand = check(input, limits);
      const draft = toDraft(input, isCommand);
      const refused = refusal(input);
      const isAtHand =
        !(refused instanceof Promise) && input.subscribers === undefined;
      let decided: MessageDraft | SendRefusal = draft;
      if (isAtHand && refused !== undefined) decided = refused;
      else if (!isAtHand || !lanes.isEmpty)
        decided = await inTurn(input, draft, refused);
      const { messageId, messageSeq } =
        typeof decided === "string"
          ? await unlessRetry(draft, decided)
          : await store.append(decided);
      return { messageId, messageSeq, clientMsgNo: draft.clientMsgNo };
    },

    async history({ channel, uid }, range) {
      assertId(channel.id, "channel_id");
      if (channel.type !== GROUP_CHANNEL) assertId(uid ?? "", "uid");
      const key = channelKey(channel, uid ?? "");
      const limit = Math.min(range.limit, limits.historyLimit);
      const [headSeq, slice] = await Promise.all([
        store.headSeq(key),
        store.readMessages(key, { ...range, limit }),
      ]);
      const newest = range.reverse ? slice.messages[0] : slice.messages.at(-1);
      return {
        ...slice,
        headSeq: Math.max(headSeq, newest?.messageSeq ?? 0), // one may come between the two reads
      };
    },
  };
}

/** Throws on what no sender may do; tells whether it is a command. */
function check(input: SendInput, limits: MessageLimits): boolean {
  assertId(input.fromUid, "from_uid");
  assertId(input.channel.id, "channel_id");
  if (input.clientMsgNo !== undefined)
    assertLabel(input.clientMsgNo, "client_msg_no");
  if (input.streamNo !== undefined) assertLabel(input.streamNo, "stream_no");
  if (input.tagKey !== undefined) assertLabel(input.tagKey, "tag_key");
  for (const uid of input.subscribers ?? []) assertId(uid, "subscribers");
  if (input.payload.length > limits.maxPayloadBytes)
    throw new BrokerError("too_large", {
      message: `payload exceeds ${limits.maxPayloadBytes} bytes`,
      details: [{ path: "payload", message: "too large" }],
    });
  const type = contentType(input.payload, limits.contentValidation);
  const isCommand = type === COMMAND_TYPE || input.header.syncOnce;
  if (input.subscribers !== undefined && !isCommand)
    throw new BrokerError("bad_request", {
      message: "subscribers is only for commands (sync_once 1 or type 99)",
      details: [{ path: "subscribers", message: "not a command" }],
    });
  return isCommand;
}

function toDraft(input: SendInput, isCommand: boolean): MessageDraft {
  const { noPersist, redDot } = input.header;
  return {
    key: channelKey(input.channel, input.fromUid),
    channel: input.channel,
    fromUid: input.fromUid,
    clientMsgNo: input.clientMsgNo ?? randomUUID().replaceAll("-", ""),
    dedupe: input.clientMsgNo !== undefined,
    header: { noPersist: noPersist || isCommand, redDot },
    expireS: input.expireS,
    streamNo: input.streamNo,
    tagKey: input.tagKey,
    payload: input.payload,
    origin: input.origin,
    recipients: undefined,
  };
}
