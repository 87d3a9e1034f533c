// `jindou/client`: the client SDK for browsers and Node. Its public interface is what this file
// exports; docs/sdk.md is its guide. Below that the client: its parts, what each lifecycle event
// and each push means to them, and the calls of the app. State: none but that of its parts.

import { type ChannelRef, GROUP_CHANNEL, PERSON_CHANNEL } from "../broker/model.ts";
import type { Push } from "../protocol/protocol.ts";
import type { Client, ConversationView } from "./api.ts";
import { Channels } from "./channels.ts";
import { Commands } from "./commands.ts";
import type { Ask, Request } from "./connection.ts";
import { Connector } from "./connector.ts";
import type { JindouError } from "./errors.ts";
import { Events } from "./events.ts";
import { createReceiver, draftOf, type Receiver } from "./messages.ts";
import { type ConnectOptions, checkNames, type Settings, settle } from "./options.ts";
import { Outbox } from "./outbox.ts";
import { PresenceWatches } from "./presence.ts";
import { Background, Calls } from "./requests.ts";
import { Streams } from "./streams.ts";

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

const HISTORY_OPTIONS = "fromSeq toSeq limit newestFirst";
const PAGE_OPTIONS = "limit offset";
const HISTORY_LIMIT = 50;
const CONVERSATION_LIMIT = 100;

/** The group channel with this id. */
export function group(id: string): ChannelRef {
  return { id, type: GROUP_CHANNEL };
}

/** The conversation with this user. */
export function person(uid: string): ChannelRef {
  return { id: uid, type: PERSON_CHANNEL };
}

/** A client that connects at once and reconnects by itself. Throws `bad_option`, `bad_id`. */
export function connect(options: ConnectOptions): Client {
  const settings = settle(options);
  const { uid, deviceId } = settings;
  const parts = createParts(settings);
  const { events, calls, outbox, streams, channels, commands, presence } = parts;
  const connector = createConnector(settings, parts);
  const stopListening = onNetworkReturn(() => connector.connectNow());
  events.on("status", (status) => {
    if (status === "closed") stopListening();
  });
  connector.connectNow();
  return {
    uid,
    deviceId,
    get status() {
      return connector.status;
    },
    on(event, handler) {
      const off = events.on(event, handler);
      if (event === "command") commands.work();
      return off;
    },
    ready: () => calls.connected(),
    send: async (channel, content, options = {}) => outbox.send(draftOf(channel, content, options)),
    ...createQueries(calls.call, parts.receiver),
    streamOf: (channel, clientMsgNo) => streams.of(channel, clientMsgNo),
    watchPresence: (uids, handler) => presence.watch(uids, handler),
    cursors: () => channels.cursors(),
    close: () => connector.close(),
  };
}

type Parts = ReturnType<typeof createParts>;

function createParts({ uid, cursors, maxQueued, timeouts }: Settings) {
  const { requestMs, sendMs } = timeouts;
  const events = new Events();
  const onError = (error: JindouError) => events.emit("error", error);
  const calls = new Calls({ maxQueued, requestMs });
  const background = new Background();
  const { ask } = background;
  const outbox: Outbox = new Outbox({
    uid,
    maxQueued,
    sendMs,
    acked: (channel, ack) => channels.acked(channel, ack),
  });
  const streams = new Streams({
    uid,
    call: calls.call,
    ask,
    onStream: (stream) => events.emit("stream", stream),
    onEvent: (event) => events.emit("event", event),
  });
  const receiver = createReceiver(uid, streams.ofMessage);
  const channels: Channels = new Channels({
    uid,
    cursors,
    ask,
    onError,
    deliver: (message) => events.emit("message", receiver.message(message)),
    isOwn: ({ fromUid, channel, clientMsgNo }) =>
      fromUid === uid && outbox.has(channel, clientMsgNo),
    isSending: (channel) => outbox.isSending(channel),
  });
  const commands = new Commands({
    ask,
    onError,
    handlers: () => events.handlers("command"),
  });
  const presence = new PresenceWatches({
    ask,
    onError,
    changed: (one) => events.emit("presence", one),
    call: (handler, one) => events.call(handler, one),
  });
  return {
    events,
    calls,
    background,
    outbox,
    streams,
    receiver,
    channels,
    commands,
    presence,
  };
}

function createConnector(settings: Settings, parts: Parts): Connector {
  const { events, calls, background, outbox } = parts;
  const { streams, channels, commands, presence } = parts;
  return new Connector({
    settings,
    resume: (limit) => channels.resume(limit),
    opened(connection, connack) {
      background.opened(connection, connack.limits.maxFramesPerSecond);
      calls.opened(connection);
      outbox.opened(connection);
      streams.opened();
      presence.opened();
      channels.opened(connack); // last: it may call handlers
    },
    pushed: (push) => route(push, parts),
    lost() {
      for (const one of [background, channels, calls, outbox, streams]) one.lost();
    },
    closed(error) {
      background.lost();
      channels.lost();
      for (const one of [calls, outbox, streams, commands]) one.close(error);
    },
    emit: (event, value) => events.emit(event, value),
  });
}

function route(push: Push, parts: Parts): void {
  const { events, streams, channels, receiver } = parts;
  switch (push.kind) {
    case "message":
      return channels.message(push.channel, push.message);
    case "messages":
      return channels.range(push);
    case "event":
      return streams.event(push.channel, push.event);
    case "stream":
      return void streams.snapshot(push.channel, push.snapshot);
    case "command":
      return parts.commands.take(push.channel, push.inboxSeq, push.message);
    case "conversation":
      return events.emit("conversation", {
        change: push.change,
        conversation: receiver.conversation(push.conversation),
      });
    case "presence":
      return parts.presence.take(push.presence);
    case "disconnect": // handled by the connection
  }
}

type Queries = Pick<
  Client,
  "history" | "conversations" | "markRead" | "setUnread" | "deleteConversation" | "presence"
>;

/** Requests of the app; each may be repeated without harm. */
function createQueries(ask: Ask, receiver: Receiver): Queries {
  const change = async (
    channel: ChannelRef,
    what: Request<"conversation">["change"],
  ): Promise<ConversationView> => {
    const request = { kind: "conversation", channel, change: what } as const;
    const { conversation } = await ask(request);
    return receiver.conversation(conversation);
  };
  return {
    async history(channel, options = {}) {
      checkNames("history", options, HISTORY_OPTIONS);
      const { fromSeq, toSeq = 0, limit = HISTORY_LIMIT } = options;
      const { messages, headSeq, more } = await ask({
        kind: "history",
        channel,
        fromSeq: fromSeq ?? 1,
        toSeq,
        limit,
        reverse: options.newestFirst ?? fromSeq === undefined,
      });
      return { messages: messages.map(receiver.message), headSeq, more };
    },

    async conversations(options = {}) {
      checkNames("conversations", options, PAGE_OPTIONS);
      const { limit = CONVERSATION_LIMIT, offset = 0 } = options;
      const page = await ask({ kind: "conversations", limit, offset });
      const conversations = page.conversations.map(receiver.conversation);
      return { conversations, more: page.more };
    },

    markRead: (channel, seq) => change(channel, { kind: "read", seq }),
    setUnread: (channel, unread) => change(channel, { kind: "unread", unread }),
    deleteConversation: (channel) => change(channel, { kind: "delete" }),

    async presence(uids) {
      const { presence } = await ask({ kind: "presence", uids });
      return presence;
    },
  };
}

/** Browsers report that the network is back: the rest of a reconnect delay is pointless then. */
function onNetworkReturn(listener: () => void): () => void {
  const page = globalThis as Partial<EventTarget>; // Node's global object is not one
  page.addEventListener?.("online", listener);
  return () => page.removeEventListener?.("online", listener);
}
