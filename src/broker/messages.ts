// Sends messages and commands, and reads history [DESIGN §3]. This file does not deliver messages.
// The store publishes each message that it accepts.

import { KeyedWindow, type Pass } from "../lib/keyed-window.ts";
import type { ChannelActivity } from "./channel-activity.ts";
import { type Audience, audienceOf } from "./commands.ts";
import { COMMAND_TYPE, type ContentRules, checkPayload } from "./content.ts";
import { BrokerError, type SendRefusal } from "./errors.ts";
import type { SendHook } from "./hooks.ts";
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
  CommandDraft,
  HistoryRange,
  HistorySlice,
  InboxStore,
  MessageDraft,
  MessageStore,
} from "./ports.ts";
import { createSendRule } from "./send-rule.ts";

interface CopyLimit {
  /** Throws `rate_limited` if the sender's budget is in debt. */
  requirePaid(): void;
  /** Charges the sender for the copies. Throws the same errors as `requirePaid`. */
  admit(copies: number): void;
  /** Refunds the charge of `admit`. Called if the copies were not stored. */
  refund(): void;
}

export interface SendInput {
  readonly fromUid: string;
  readonly channel: ChannelRef;
  /** `undefined` if the sender chose no value. In that case, a retry is stored as a new message. */
  readonly clientMsgNo: string | undefined;
  /**
   * True if a message that reuses a `clientMsgNo` with a different payload is stored as a new
   * message. If false, such a message is refused.
   */
  readonly allowsReuse?: boolean | undefined;
  readonly header: MessageHeader & { readonly syncOnce: boolean };
  /** Seconds until the message expires. 0 means that the message never expires. */
  readonly expireS: number;
  readonly streamNo: string | undefined;
  readonly tagKey: string | undefined;
  readonly passthrough?: Passthrough | undefined;
  readonly payload: Uint8Array;
  /** Users to whom a command is restricted. Must be `undefined` for messages. */
  readonly subscribers: readonly string[] | undefined;
  /**
   * Session that sends the message and does not receive it. `undefined` if the message was sent
   * over HTTP.
   */
  readonly origin: string | undefined;
  /**
   * Checks the rights of the session again. Called after the message has waited, for example for
   * its hook, and throws if the message must not be stored any more.
   */
  readonly recheck?: (() => void) | undefined;
  /** Limit on inbox copies. `undefined` means no limit, as for backends. */
  readonly copyLimit?: CopyLimit | undefined;
}

interface MessageRules extends SendTerms, ContentRules {
  readonly historyLimit: number;
  readonly activity?: Pick<ChannelActivity, "message">;
  /** Hook that clients' messages must pass. `undefined` if no hook is configured. */
  readonly hook?: SendHook | undefined;
  /**
   * Returns true while an import is open. During this time, messages that have waited are not
   * stored.
   */
  readonly isImporting?: () => boolean;
}

export interface SendResult {
  readonly messageId: number;
  /** 0 if the message is not stored or is a command. A command has an inboxSeq in each inbox. */
  readonly messageSeq: number;
  readonly clientMsgNo: string;
  /** True if the call was a retry. The other fields then describe the first message. */
  readonly repeated: boolean;
}

export interface HistoryPage extends HistorySlice {
  readonly headSeq: number;
}

/** Only `send` checks permissions. Callers of the other methods must check them. */
export interface Messages {
  /**
   * Sends a message or command and resolves when it is durable. Messages from one origin to one
   * channel keep their order, even if they must pass a hook. Retries are recognised before the hook
   * is called. They are compared by the payload that the client sent, even if the hook replaced the
   * payload of the first message. Throws a `SendRefusal` code, `client_msg_no_reused`, `bad_id`,
   * `bad_request`, `bad_payload`, `too_large`, `rate_limited`, `overloaded`, `unavailable`,
   * `too_late` or `disk_full`.
   */
  send(input: SendInput): Promise<SendResult>;
  /** Returns a page of history with at most `historyLimit` messages. Throws `bad_id`. */
  history(view: ChannelView, range: HistoryRange): Promise<HistoryPage>;
  headSeq(view: ChannelView): Promise<number>;
  find(view: ChannelView, query: MessageQuery): Promise<HistorySlice>;
}

/**
 * Total number of copies in a sender's running commands at which further commands wait. A waiting
 * command starts when the total falls below this number.
 */
const MAX_CONCURRENT_COPIES = 1000;
const MAX_WAITING_COMMANDS = 4096;

export function createMessages(
  store: ChannelStore & MessageStore & InboxStore,
  rules: MessageRules,
): Messages {
  const rule = createSendRule(store, rules);
  const commands = new KeyedWindow(MAX_CONCURRENT_COPIES, MAX_WAITING_COMMANDS);

  /**
   * Appends a message once the hook has replied for it and for the earlier messages in its queue,
   * and the recipients of the earlier commands are known.
   */
  function sendMessage(
    input: SendInput,
    draft: MessageDraft,
    hooked: Promise<HookedDraft> | undefined,
  ): Promise<AppendResult> {
    const queue = queueOf(draft.origin, draft);
    if (hooked !== undefined)
      return rule
        .inTurn(queue, hooked)
        .then((passed) => passed.result ?? appendLater(input, passed.draft));
    const turn = rule.turn(queue);
    return turn === undefined ? store.append(draft) : turn.then(() => appendLater(input, draft));
  }

  /** Appends a message that has waited for its hook or its turn. */
  async function appendLater(input: SendInput, draft: MessageDraft): Promise<AppendResult> {
    assertStillAllowed(input);
    return store.append(draft);
  }

  /**
   * Checks a message that has waited. Throws `unavailable` if an import was opened while the
   * message waited, because an import waits only a short time for earlier calls, but a hook may
   * take 30 s. Also throws the errors of `recheck`.
   */
  function assertStillAllowed({ recheck }: SendInput): void {
    if (rules.isImporting?.()) throw new BrokerError("unavailable");
    recheck?.();
  }

  /**
   * Returns the recipients of a command, or the reason why the sender is not allowed to send it.
   * Checks the permission first, because the member list may be long.
   */
  async function resolveCommand(input: SendInput): Promise<SendRefusal | Audience> {
    const { fromUid, channel, header, origin } = input;
    const sender = { fromUid, isBackend: origin === undefined };
    const refused = await rule.refusal(sender, channel, undefined);
    const { noPersist } = header;
    return refused ?? audienceOf({ ...input, noPersist }, store);
  }

  async function sendCommand(
    input: SendInput,
    draft: MessageDraft,
    hooked: Promise<HookedDraft> | undefined,
  ): Promise<AppendResult> {
    const { origin, fromUid } = input;
    const resolve = async (): Promise<Resolution> => {
      const passed = await hooked;
      if (passed?.result !== undefined) return passed.result;
      // Without this check, each waiting command of a flood would read the members and then be
      // refused.
      input.copyLimit?.requirePaid();
      return { draft: passed?.draft ?? draft, audience: await resolveCommand(input) };
    };
    if (origin === undefined) return issue(input, draft, resolve());
    const pass = commands.enter(fromUid);
    if (pass === undefined) throw new BrokerError("overloaded");
    // The sender's permission is checked in the command's turn, because an earlier message may
    // still be waiting for its hook.
    const turn = rule.turn(queueOf(origin, draft));
    try {
      return await issue(input, draft, Promise.all([pass.turn, turn]).then(resolve), pass);
    } finally {
      pass.leave();
    }
  }

  async function issue(
    input: SendInput,
    { key }: MessageDraft,
    resolution: Promise<Resolution>,
    pass?: Pass,
  ): Promise<AppendResult> {
    const resolved = await rule.inTurn(queueOf(input.origin, { key }), resolution);
    if (!("audience" in resolved)) return resolved;
    assertStillAllowed(input);
    const { draft, audience } = resolved;
    if (typeof audience === "string") return store.append({ ...draft, permission: audience });
    const { recipients } = audience;
    pass?.setSize(Math.max(1, recipients?.length ?? 0));
    if (audience.kind === "store") return storeCommand({ ...draft, ...audience }, input.copyLimit);
    return store.append({
      ...draft,
      header: { ...draft.header, noPersist: true, syncOnce: true },
      recipients,
      permission: "granted",
    });
  }

  async function storeCommand(
    command: CommandDraft,
    copyLimit: CopyLimit | undefined,
  ): Promise<AppendResult> {
    copyLimit?.admit(command.recipients.length);
    let isStored = false;
    try {
      const result = await store.appendCommand(command);
      isStored = !result.duplicate && result.refused === undefined;
      return result;
    } finally {
      if (!isStored) copyLimit?.refund();
    }
  }

  /**
   * Calls the hook unless the draft is a retry of a stored message, or the sender is not allowed to
   * send. The later step that stores the message checks both conditions again.
   */
  async function passHook(
    hook: SendHook,
    draft: MessageDraft,
    faultOf: (replacement: Uint8Array) => string | undefined,
  ): Promise<HookedDraft> {
    const { fromUid, channel, payload, clientMsgNo } = draft;
    const first = await resultOfRetry(draft);
    if (first !== undefined) return { result: first, draft };
    const refused = await rule.refusal({ fromUid, isBackend: false }, channel, undefined);
    if (refused !== undefined) throw new BrokerError(refused);
    try {
      const message = { fromUid, channel, clientMsgNo: clientMsgNo || undefined, payload };
      const replacement = await hook.ask(message, faultOf);
      if (replacement === undefined) return { result: undefined, draft };
      return { result: undefined, draft: { ...draft, payload: replacement, sentPayload: payload } };
    } catch (error) {
      // Another call with the same `clientMsgNo` may have passed the hook during this call.
      const result = await resultOfRetry(draft);
      if (result !== undefined) return { result, draft };
      throw error;
    }
  }

  /** Returns the result for a `clientMsgNo` that was used before, otherwise `undefined`. */
  async function resultOfRetry(draft: MessageDraft): Promise<AppendResult | undefined> {
    if (draft.clientMsgNo === "") return undefined;
    const result = await store.append({ ...draft, permission: "refused_by_hook" });
    return result.refused === "refused_by_hook" ? undefined : result;
  }

  function hookedDraft(
    { channel, origin, header }: SendInput,
    draft: MessageDraft,
    isCommand: boolean,
  ): Promise<HookedDraft> | undefined {
    const { hook } = rules;
    if (hook === undefined || origin === undefined || !hook.covers(channel)) return undefined;
    const hooked = passHook(hook, draft, (payload) => {
      const type = typeOrFault(payload);
      if (typeof type === "string") return type;
      if (header.syncOnce || (type === COMMAND_TYPE) === isCommand) return undefined;
      return "a hook must not turn a message into a command, or a command into a message";
    });
    hooked.catch(ignore); // a command that waits for its turn handles the rejection later
    return hooked;
  }

  /** Returns the type of a payload, or an error message if the payload is not valid. */
  function typeOrFault(payload: Uint8Array): number | string {
    try {
      return checkPayload(payload, rules);
    } catch (error) {
      if (error instanceof BrokerError) return error.message;
      throw error;
    }
  }

  return {
    async send(input) {
      const isCommand = checkMessage(input, rules);
      const draft = toDraft(input, rules);
      const hooked = hookedDraft(input, draft, isCommand);
      const { messageId, messageSeq, duplicate, refused } = isCommand
        ? await sendCommand(input, draft, hooked)
        : await sendMessage(input, draft, hooked);
      if (refused !== undefined) throw new BrokerError(refused);
      if (!duplicate) rules.activity?.message(draft.key);
      const { clientMsgNo = clientMsgNoOf(messageId) } = input;
      return { messageId, messageSeq, clientMsgNo, repeated: duplicate };
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
        // A message may have been stored between the two reads.
        headSeq: Math.max(headSeq, newest?.messageSeq ?? 0),
      };
    },

    async headSeq(view) {
      return store.headSeq(viewedKey(view));
    },

    async find(view, query) {
      return findMessages(store, viewedKey(view), query);
    },
  };
}

/** Outcome of `passHook`. `result` is set if the message is a retry, which must not be stored. */
interface HookedDraft {
  readonly result: AppendResult | undefined;
  readonly draft: MessageDraft;
}

/** A command with its recipients or the reason to refuse it, or the result of a retry. */
type Resolution =
  | { readonly draft: MessageDraft; readonly audience: SendRefusal | Audience }
  | AppendResult;

function ignore(): void {}

/**
 * Returns the queue for this session and channel. Calls over HTTP have no queue, and their order is
 * undefined.
 */
function queueOf(
  origin: string | undefined,
  { key }: Pick<MessageDraft, "key">,
): string | undefined {
  return origin === undefined ? undefined : `${origin} ${key}`;
}

/** Returns true if the message is a command. Throws if it is not valid. */
function checkMessage(input: SendInput, rules: MessageRules): boolean {
  assertId(input.fromUid, "from_uid");
  assertId(input.channel.id, "channel_id");
  if (input.clientMsgNo !== undefined) assertLabel(input.clientMsgNo, "client_msg_no");
  if (input.streamNo !== undefined) assertLabel(input.streamNo, "stream_no");
  if (input.tagKey !== undefined) assertLabel(input.tagKey, "tag_key");
  if (input.passthrough?.topic) assertLabel(input.passthrough.topic, "topic");
  for (const uid of input.subscribers ?? []) assertId(uid, "subscribers");
  const type = checkPayload(input.payload, rules);
  const isCommand = type === COMMAND_TYPE || input.header.syncOnce;
  if (input.subscribers !== undefined && !isCommand)
    throw new BrokerError("bad_request", {
      message: "subscribers is only allowed for commands (sync_once 1 or payload type 99)",
      details: [{ path: "subscribers", message: "is only allowed for commands" }],
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
    permission: checkOf(input.fromUid, input.channel, terms, input.origin === undefined),
    allowsReuse: input.allowsReuse,
  };
}
