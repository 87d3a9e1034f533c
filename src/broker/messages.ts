// Sending a message and reading history: the path of DESIGN §3. State: that of the send rule.
// Delivery is not called from here: the store publishes what it stored, in the order it stored it.

import { KeyedWindow, type Pass } from "../lib/keyed-window.ts";
import { type Audience, audienceOf } from "./commands.ts";
import { BrokerError, type SendRefusal } from "./errors.ts";
import {
  checkMessage,
  type MessageLimits,
  type SendInput,
  toDraft,
} from "./message-input.ts";
import { clientMsgNoOf } from "./model.ts";
import type {
  Appended,
  ChannelStore,
  HistoryRange,
  HistorySlice,
  InboxStore,
  MessageDraft,
  MessageStore,
} from "./ports.ts";
import { createSendRule } from "./send-rule.ts";
import { type ChannelView, viewedKey } from "./view.ts";

/** Copies of one session's user on their way into inboxes; a larger command goes alone. */
const COPIES_AT_ONCE = 1000;
/** Commands of one user that wait for its earlier ones. */
const MAX_WAITING_COMMANDS = 4096;

export type { MessageLimits, SendInput } from "./message-input.ts";

export interface Sent {
  readonly messageId: number;
  /** 0 when the message has no place in the channel (not stored, or a command, whose copies count in their inboxes). */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
}

/** Whose history. */
export type HistoryView = ChannelView;

export interface HistoryPage extends HistorySlice {
  /** The channel's newest seq. */
  readonly headSeq: number;
}

export interface Messages {
  /**
   * Resolves once the message is durable. Throws a `SendRefusal` code, `bad_id`, `bad_request`, `bad_payload`, `too_large`, `unavailable`,
   * `overloaded`, `rate_limited`. Sends of one origin into one channel keep their order.
   */
  send(input: SendInput): Promise<Sent>;
  /** A page of history, the limit capped. Asks no permission: callers decide who may see. Throws `bad_id`, `bad_request`. */
  history(view: HistoryView, range: HistoryRange): Promise<HistoryPage>;
}

export function createMessages(
  store: ChannelStore & MessageStore & InboxStore,
  limits: MessageLimits,
): Messages {
  const rule = createSendRule(store);
  const commands = new KeyedWindow(COPIES_AT_ONCE, MAX_WAITING_COMMANDS);

  /** At once, unless a command of the same origin into the same channel, which came before it, is still being judged. */
  function sendMessage(draft: MessageDraft): Promise<Appended> {
    const turn = rule.turn(laneOf(draft.origin, draft));
    return turn === undefined
      ? store.append(draft)
      : turn.then(() => store.append(draft));
  }

  /** Who gets it, or why nobody does: a command that is refused costs no list of members. */
  async function judgeCommand(
    input: SendInput,
  ): Promise<SendRefusal | Audience> {
    const { fromUid, channel, header } = input;
    const refused = await rule.refusal(fromUid, channel, undefined);
    const { noPersist } = header;
    return refused ?? audienceOf({ ...input, noPersist }, store);
  }

  /** Of a session's user in the order and the measure that its earlier commands allow; a backend's calls wait for nothing. */
  async function sendCommand(
    input: SendInput,
    draft: MessageDraft,
  ): Promise<Appended> {
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
  ): Promise<Appended> {
    const audience = await rule.inTurn(laneOf(origin, draft), judged);
    if (typeof audience === "string")
      return store.append({ ...draft, permission: audience });
    const { recipients } = audience;
    pass?.weigh(Math.max(1, recipients?.length ?? 0));
    if (audience.kind === "keep") {
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
      const isCommand = checkMessage(input, limits);
      const draft = toDraft(input);
      const { messageId, messageSeq, refused } = isCommand
        ? await sendCommand(input, draft)
        : await sendMessage(draft);
      if (refused !== undefined) throw new BrokerError(refused);
      const { clientMsgNo = clientMsgNoOf(messageId) } = input;
      return { messageId, messageSeq, clientMsgNo };
    },

    async history(view, range) {
      const key = viewedKey(view);
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

/** One connection's sends into one channel keep their order; calls over HTTP have none to keep. */
function laneOf(
  origin: string | undefined,
  { key }: MessageDraft,
): string | undefined {
  return origin === undefined ? undefined : `${origin} ${key}`;
}
