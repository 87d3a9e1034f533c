// The client SDK for browsers and Node (`jindou-client`). The exports of this file are its public
// interface; docs/sdk.md is its guide.

import {
  type ChannelRef,
  type Conversation,
  EXPIRING_EVENT,
  GROUP_CHANNEL,
  historyRange,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import type { Push } from "../protocol/protocol.ts";
import type {
  Client,
  ConversationView,
  LiveStream,
  RecordStream,
  RecordStreamOptions,
  StreamTarget,
} from "./api.ts";
import { Channels } from "./channels.ts";
import { Commands } from "./commands.ts";
import type { Connection, ReplyTo, Request } from "./connection.ts";
import { Connector } from "./connector.ts";
import type { JindouError } from "./errors.ts";
import { Events } from "./events.ts";
import { createReceiver, draftOf, sentMessage } from "./messages.ts";
import {
  badOption,
  type ConnectOptions,
  checkedChannel,
  checkNames,
  type Settings,
  settingsFrom,
} from "./options.ts";
import { Outbox } from "./outbox.ts";
import { PresenceWatches } from "./presence.ts";
import { RecordStreams } from "./record-streams.ts";
import { TokenRefresh } from "./refresh.ts";
import { Background, Calls } from "./requests.ts";
import { Streams } from "./streams.ts";
import { Typing } from "./typing.ts";
import { Unreads } from "./unreads.ts";
import { followPage, Visibility } from "./visibility.ts";

export type {
  ChannelRef,
  ChannelType,
  DeviceFlag,
  Presence,
  StreamNote,
  StreamState,
} from "../broker/model.ts";
export type * from "./api.ts";
export { JindouError, type JindouErrorCode } from "./errors.ts";
export type { ConnectOptions, Timeouts } from "./options.ts";
export type { SocketConstructor, SocketLike } from "./socket.ts";

const HISTORY_OPTIONS = "before after fromSeq toSeq limit newestFirst";
const PAGE_OPTIONS = "limit cursor";
const HISTORY_LIMIT = 50;
const PAGE_LIMIT = 100;

/** Returns the group channel with this id. */
export function group(id: string): ChannelRef {
  return { id, type: GROUP_CHANNEL };
}

/** Returns the personal channel with this user. */
export function person(uid: string): ChannelRef {
  return { id: uid, type: PERSON_CHANNEL };
}

/**
 * Creates a client. It connects in the background and reconnects automatically. Throws `bad_option`
 * or `bad_id` if an option is invalid.
 */
export function connect(options: ConnectOptions): Client {
  const settings = settingsFrom(options);
  const { uid, deviceId } = settings;
  const components = createComponents(settings);
  const { events, calls, outbox, streams, channels, commands, presence, typing } = components;
  const connector = createConnector(settings, components);
  const { visibility } = components;
  const stopFollowing = followPage(visibility);
  const stopListening = onReturn((wasOffline) => connector.connectNow(wasOffline));
  events.on("status", (status) => {
    if (status !== "closed") return;
    stopListening();
    stopFollowing();
  });
  connector.connectNow();

  function stream(target: StreamTarget): LiveStream;
  function stream<T>(path: string, options?: RecordStreamOptions): RecordStream<T>;
  function stream(target: StreamTarget | string, options?: RecordStreamOptions) {
    if (typeof target === "string") return components.recordStreams.open(target, options);
    return streams.open(target);
  }

  return {
    uid,
    deviceId,
    get status() {
      return connector.status;
    },
    on(event, handler) {
      const removeHandler = events.on(event, handler);
      if (event === "command") commands.work();
      return removeHandler;
    },
    ready: () => calls.connected(),
    send(channel, content, options) {
      try {
        const sent = outbox.send(draftOf(channel, content, options));
        typing.sent(channel);
        return sent;
      } catch (error) {
        return Promise.reject(error);
      }
    },
    async emit(channel, type, data = "") {
      await calls.once({ kind: "emit", channel: checkedChannel(channel), type, data });
    },
    typing: (channel, isTyping = true) => typing.report(checkedChannel(channel), isTyping),
    background: () => visibility.set(false),
    foreground: () => visibility.set(true),
    ...createQueries(calls.call, components),
    stream,
    watchPresence: (uids, handler) => presence.watch(uids, handler),
    cursors: () => channels.cursors(),
    close: () => connector.close(),
  };
}

type Components = ReturnType<typeof createComponents>;

function createComponents(settings: Settings) {
  const { uid, cursors, maxQueued, timeouts } = settings;
  const { requestMs, sendMs } = timeouts;
  const events = new Events();
  const onError = (error: JindouError) => events.emit("error", error);
  const calls = new Calls({ maxQueued, requestMs });
  const background = new Background();
  const refresh = new TokenRefresh({ settings, onError });
  const { ask } = background;
  const outbox: Outbox = new Outbox({
    uid,
    maxQueued,
    sendMs,
    acked(draft, ack) {
      channels.acked(draft.channel, ack);
      const message = sentMessage(uid, draft, ack);
      events.emit("sent", message);
      unreads.message(message);
    },
  });
  const streams = new Streams({
    uid,
    call: calls.call,
    ask,
    onStream: (stream) => events.emit("stream", stream),
    onEvent(event) {
      events.emit("event", event);
      typing.received(event);
    },
    callListener: (listener) => events.call(listener, undefined),
  });
  const recordStreams = new RecordStreams({ settings, onError });
  const receiver = createReceiver(uid, streams.startedBy);
  const channels: Channels = new Channels({
    uid,
    cursors,
    ask,
    onError,
    deliver(delivered) {
      const message = receiver.message(delivered);
      typing.ended(message.channel, message.fromUid);
      events.emit("message", message);
      unreads.message(message);
    },
    isOwn: ({ fromUid, channel, clientMsgNo }) =>
      fromUid === uid && outbox.has(channel, clientMsgNo),
    isSending: (channel) => outbox.isSending(channel),
  });
  const unreads = new Unreads({
    uid,
    ask,
    isWanted: () => events.handlers("unread").length > 0,
    emit: (count) => events.emit("unread", count),
  });
  const visibility = new Visibility({
    send: (foreground) => calls.once({ kind: "state", foreground }),
  });
  const typing = new Typing({
    uid,
    emit: (channel, type, data) => calls.once({ kind: "emit", channel, type, data }),
    changed: (change) => events.emit("typing", change),
  });
  const commands = new Commands({
    ask,
    onError,
    handlers: () => events.handlers("command"),
    handlerFailed: (error) => events.report(error, "command"),
  });
  const presence = new PresenceWatches({
    ask,
    onError,
    changed: (change) => events.emit("presence", change),
    call: (handler, change) => events.call(handler, change),
  });
  return {
    events,
    calls,
    background,
    outbox,
    streams,
    recordStreams,
    receiver,
    channels,
    commands,
    presence,
    refresh,
    typing,
    unreads,
    visibility,
  };
}

function createConnector(settings: Settings, components: Components): Connector {
  const { events, calls, background, outbox, refresh } = components;
  const { streams, recordStreams, channels, commands } = components;
  const { presence, typing, unreads, visibility } = components;
  return new Connector({
    settings,
    resume: (limit) => channels.resume(limit),
    opened(connection, connack) {
      background.opened(connection, connack.limits.maxFramesPerSecond);
      refresh.opened(connection, connack);
      calls.opened(connection);
      outbox.opened(connection);
      visibility.opened();
      typing.opened();
      streams.opened();
      recordStreams.opened();
      presence.opened();
      unreads.opened(connack);
      channels.opened(connack); // last, because it may call the app's handlers
    },
    pushed: (push) => route(push, components),
    lost(end) {
      outbox.lost(end);
      for (const component of [background, refresh, channels, calls, streams, unreads])
        component.lost();
    },
    closed(error) {
      background.lost();
      refresh.lost();
      typing.close();
      for (const component of [events, channels, calls, outbox, streams, recordStreams, commands])
        component.close(error);
    },
    emit: (event, value) => events.emit(event, value),
  });
}

function route(push: Push, components: Components): void {
  const { events, streams, channels, receiver } = components;
  switch (push.kind) {
    case "message":
      return channels.message(push.channel, push.message);
    case "messages":
      return channels.range(push);
    case "event":
      if (push.event.type === EXPIRING_EVENT) return components.refresh.expiring();
      return streams.event(push.channel, push.event);
    case "stream":
      return void streams.snapshot(push.channel, push.snapshot);
    case "command":
      return components.commands.receive(push.channel, push.inboxSeq, push.message);
    case "conversation":
      events.emit("conversation", {
        change: push.change,
        conversation: receiver.conversation(push.conversation),
      });
      return components.unreads.conversation(push.conversation, true);
    case "presence":
      return components.presence.receive(push.presence);
    case "disconnect": // the connection handles this push
  }
}

type Queries = Pick<
  Client,
  | "history"
  | "cancel"
  | "conversations"
  | "conversation"
  | "members"
  | "markRead"
  | "setUnread"
  | "deleteConversation"
  | "presence"
>;

/** Returns the methods whose requests are idempotent and are repeated after a lost connection. */
function createQueries(
  ask: Calls["call"],
  { receiver, unreads }: Pick<Components, "receiver" | "unreads">,
): Queries {
  const conversationOf = async (
    channel: ChannelRef,
    change?: Request<"conversation">["change"],
    isNeeded?: (conversation: Conversation) => boolean,
  ): Promise<ConversationView> => {
    const request = { kind: "conversation", channel: checkedChannel(channel), change } as const;
    const seen = ({ conversation }: ReplyTo<"conversation">) =>
      unreads.conversation(conversation, change !== undefined);
    const repeat = async (connection: Connection) => {
      const reply = await connection.request({ ...request, change: undefined }, seen);
      return isNeeded?.(reply.conversation) ? connection.request(request, seen) : reply;
    };
    const { conversation } = await ask(request, seen, isNeeded && repeat);
    return receiver.conversation(conversation);
  };
  /**
   * Channels of the calls in progress that mark messages as read. A later call for the same channel
   * removes the channel of the earlier call, so that the earlier call does not repeat its request.
   */
  const reads = new Set<ChannelRef>();
  const replaceReads = ({ id, type }: ChannelRef) => {
    for (const read of reads) if (read.id === id && read.type === type) reads.delete(read);
  };
  /**
   * Marks messages as read. If the request has waited for a connection or is repeated, it does not
   * move the read position back, because another device may have read more messages since then.
   */
  const markRead = async (channel: ChannelRef, seq: number): Promise<ConversationView> => {
    const read = checkedChannel(channel);
    replaceReads(read);
    reads.add(read);
    const isNeeded = ({ readSeq }: Conversation) => readSeq < seq && reads.has(read);
    return conversationOf(read, { kind: "read", seq }, isNeeded).finally(() => reads.delete(read));
  };
  /**
   * Returns the channel's newest seq. If a deletion that names this seq is sent again, it does not
   * delete messages that have arrived in the meantime.
   */
  const headOf = async (channel: ChannelRef) => (await conversationOf(channel)).headSeq;
  return {
    async history(channel, options = {}) {
      checkNames("history", options, HISTORY_OPTIONS);
      const { fromSeq, after, newestFirst, limit = HISTORY_LIMIT } = options;
      const range = historyRange(options);
      const { messages, headSeq, more } = await ask({
        kind: "history",
        channel: checkedChannel(channel),
        ...range,
        limit,
        reverse: newestFirst ?? (range.reverse || (after ?? fromSeq) === undefined),
      });
      return { messages: messages.map(receiver.message), headSeq, more };
    },

    async cancel({ channel, clientMsgNo }) {
      const request = { kind: "cancel", channel: checkedChannel(channel), clientMsgNo } as const;
      return (await ask(request)).state;
    },

    async conversations(options = {}) {
      checkNames("conversations", options, `${PAGE_OPTIONS} sinceMs`);
      const { limit = PAGE_LIMIT, cursor, sinceMs } = options;
      const since = sinceMs === undefined ? {} : { sinceMs };
      const request = { kind: "conversations", limit, cursor, ...since } as const;
      const page = await ask(request, ({ conversations }) => {
        for (const conversation of conversations) unreads.conversation(conversation, false);
      });
      const conversations = page.conversations.map(receiver.conversation);
      return { conversations, cursor: page.cursor };
    },

    conversation: (channel) => conversationOf(channel),
    markRead,
    async setUnread(channel, unread) {
      const read = checkedChannel(channel);
      replaceReads(read);
      if (unread !== 0) return conversationOf(read, { kind: "unread", unread });
      reads.add(read);
      try {
        const current = await conversationOf(read);
        return reads.has(read) ? await markRead(read, current.headSeq) : current;
      } finally {
        reads.delete(read);
      }
    },
    deleteConversation: async (channel) =>
      conversationOf(channel, { kind: "delete", seq: await headOf(channel) }),

    async members(channel, options = {}) {
      checkNames("members", options, PAGE_OPTIONS);
      const { limit = PAGE_LIMIT, cursor } = options;
      const page = await ask({ kind: "members", channel: checkedChannel(channel), limit, cursor });
      return { uids: page.uids, cursor: page.cursor };
    },

    async presence(uids) {
      if (!Array.isArray(uids)) throw badOption("presence: uids must be a list");
      const { presence } = await ask({ kind: "presence", uids: [...uids] });
      return presence;
    },
  };
}

const RETURN_EVENTS = ["online", "offline", "visibilitychange", "pageshow", "resume", "focus"];

/**
 * Calls `listener` when the page becomes visible, is resumed, gets the focus or is online again.
 * Returns a function that removes its event handlers.
 */
function onReturn(listener: (wasOffline: boolean) => void): () => void {
  // in Node the global object is not an EventTarget
  const page = globalThis as Partial<EventTarget> & { readonly document?: { hidden?: boolean } };
  let wasOffline = false;
  const handle = ({ type, target }: Event) => {
    if (type === "offline") wasOffline = true;
    // a focus event on a single element does not mean that the user came back
    if (
      type === "offline" ||
      page.document?.hidden ||
      (target as { readonly nodeType?: number } | null)?.nodeType === 1
    )
      return;
    listener(wasOffline && type === "online");
    if (type === "online") wasOffline = false;
  };
  // the listeners use the capture phase, because not all of these events bubble to the global
  // object
  for (const type of RETURN_EVENTS) page.addEventListener?.(type, handle, true);
  return () => {
    for (const type of RETURN_EVENTS) page.removeEventListener?.(type, handle, true);
  };
}
