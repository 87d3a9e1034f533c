// What the behaviour tests share: a real broker with short words for what backends and clients do
// to it. State: a counter that makes names unique within one world, so that tests of one file share
// a broker without meeting.

import type { Test } from "tap";
import type { ChannelRef, DeviceFlag, DeviceLevel, Message } from "../../src/broker/model.ts";
import {
  type ApiResponse,
  type Broker,
  type Settings,
  startBroker,
  textPayload,
} from "../support/broker.ts";
import { jsonRpcWire } from "../support/jsonrpc-wire.ts";
import { connectNative, type NativeClientOptions } from "../support/native-client.ts";
import { type NativeClient, NativeClientError, textOf } from "../support/native-session.ts";
import { nativeWire, type Wire } from "../support/wire.ts";

/** Long enough for a machine that is busy with other tests. */
export const PATIENCE_MS = 120_000;

export const person = (uid: string): ChannelRef => ({ id: uid, type: 1 });
export const group = (id: string): ChannelRef => ({ id, type: 2 });

export interface DeviceOptions {
  readonly flag?: DeviceFlag;
  readonly level?: DeviceLevel;
  readonly token?: string;
}

export type ConnectOptions = Partial<Omit<NativeClientOptions, "uid" | "port">>;

export interface World extends Broker {
  /** A name no other test of this world has. */
  name(word: string): string;
  /** POSTs a body that must be accepted and returns the answer's body. */
  ok(path: string, body: unknown): Promise<ApiResponse["body"]>;
  /** POSTs a body and returns `<status> <code>`. */
  refusal(path: string, body: unknown): Promise<string>;
  /** Registers a device class; the token is `token-<uid>` unless told. */
  register(uid: string, device?: DeviceOptions): Promise<void>;
  /** Connects with the token `register` gives unless told. */
  connect(t: Test, uid: string, options?: ConnectOptions): Promise<NativeClient>;
  /** Registers a device class and connects it. */
  join(t: Test, uid: string, options?: ConnectOptions & DeviceOptions): Promise<NativeClient>;
  /** A new group with these members. */
  newGroup(members: readonly string[], flags?: object): Promise<ChannelRef>;
  /** Sends a text message over HTTP; `more` wins over its fields. */
  send(from: string, channel: ChannelRef, text: string, more?: object): Promise<ApiResponse>;
  /**
   * Resolves once the sessions follow the groups their users are members of; what is not stored and
   * told before does not come.
   */
  following(): Promise<void>;
  /** Online status of one user. */
  status(uid: string): Promise<{ online: number; device_flag: number }>;
  /** Waits until the user is offline. */
  offline(uid: string): Promise<void>;
}

export async function startWorld(
  t: Test,
  settings: Settings = {},
  dataPath?: string,
): Promise<World> {
  return worldOf(await startBroker(t, settings, dataPath));
}

export function worldOf(broker: Broker): World {
  let names = 0;
  const world: World = {
    ...broker,
    get apiPort() {
      return broker.apiPort;
    },
    get clientPort() {
      return broker.clientPort;
    },
    name(word) {
      names += 1;
      return `${word}-${names}`;
    },

    async ok(path, body) {
      const answer = await broker.call(path, body);
      if (answer.status !== 200) throw new Error(`${path}: ${JSON.stringify(answer.body)}`);
      return answer.body;
    },

    async refusal(path, body) {
      const answer = await broker.call(path, body);
      return `${answer.status} ${answer.body.code}`;
    },

    async register(uid, { flag = 0, level = 0, token } = {}) {
      await world.ok("/user/token", {
        uid,
        token: token ?? `token-${uid}`,
        device_flag: flag,
        device_level: level,
      });
    },

    async connect(t, uid, options = {}) {
      const port = broker.clientPort;
      const client = await connectNative(t, {
        token: `token-${uid}`,
        timeoutMs: PATIENCE_MS,
        wire: nextWire(uid),
        ...options,
        uid,
        port,
        publicationsDelivered: broker.publicationsDelivered,
      });
      await broker.sessionsCaughtUp?.(port);
      return client;
    },

    async join(t, uid, { level, ...options } = {}) {
      await world.register(uid, {
        ...options,
        ...(level === undefined ? {} : { level }),
      });
      return world.connect(t, uid, options);
    },

    async newGroup(subscribers, flags = {}) {
      const channel = group(world.name("group"));
      await world.ok("/channel", { ...wire(channel), ...flags, subscribers });
      return channel;
    },

    send: (from, channel, text, more = {}) =>
      broker.call("/message/send", {
        from_uid: from,
        ...wire(channel),
        payload: textPayload(text),
        ...more,
      }),

    async following() {
      await broker.publicationsDelivered?.();
      await broker.sessionsCaughtUp?.();
    },

    async status(uid) {
      const [record] = await world.ok("/user/onlinestatus", [uid]);
      return record;
    },

    offline: (uid) => eventually(async () => (await world.status(uid)).online === 0),
  };
  return world;
}

/** A channel as HTTP bodies name it. */
export function wire(channel: ChannelRef) {
  return { channel_id: channel.id, channel_type: channel.type };
}

/** Tries `holds` until it is true; rejects when it never is. */
export async function eventually(
  holds: () => boolean | Promise<boolean>,
  everyMs = 25,
): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error("it never came true");
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}

/** The code a client's request, or connect, is refused with; "ok" when it is not. */
export async function codeOf(request: Promise<unknown>): Promise<string> {
  try {
    await request;
    return "ok";
  } catch (error) {
    if (error instanceof NativeClientError) return error.code;
    throw error;
  }
}

/**
 * The texts of all messages pushed to the client so far. A `ping` before makes that everything
 * published before it.
 */
export async function received(client: NativeClient): Promise<readonly string[]> {
  await client.ping();
  return client.messages.map(textOf);
}

/** Resolves once the client has so many messages, with their texts. */
export async function receives(client: NativeClient, count: number): Promise<readonly string[]> {
  await client.waitFor(() => client.messages.length >= count, `${count} messages`);
  return received(client);
}

/** Sends large messages until a user who does not read is cut off; resolves with how many. */
export async function sendUntilOffline(
  world: World,
  users: {
    readonly from: string;
    readonly to: string;
    readonly channel: ChannelRef;
  },
): Promise<number> {
  const { from, to, channel } = users;
  const bulk = "x".repeat(60_000);
  let sent = 0;
  while ((await world.status(to)).online === 1) {
    if (sent > 1000) throw new Error("60 MB unread and still online");
    await Promise.all(range(1, 20).map(() => world.send(from, channel, bulk)));
    sent += 20;
  }
  return sent;
}

/** How a connection ended: the reason it was told, and the close code. */
export async function farewell(client: NativeClient): Promise<string> {
  const { code } = await client.closed;
  const told = client.pushes.find((push) => push.kind === "disconnect");
  return `${told?.kind === "disconnect" ? told.reason : "silent"} ${code}`;
}

/** The contents of text messages. */
export const textsOf = (messages: readonly Message[]): readonly string[] => messages.map(textOf);

export const seqs = (messages: readonly Message[]): readonly number[] =>
  messages.map((message) => message.messageSeq);

/** The whole numbers from `first` to `last`, downwards when `last` is the smaller one. */
export function range(first: number, last: number): readonly number[] {
  const step = last < first ? -1 : 1;
  return Array.from({ length: Math.abs(last - first) + 1 }, (_, i) => first + i * step);
}

let sessions = 0;

/** Of the next session: JINDOU_TEST_FORMAT = `native` (default), `jsonrpc`, or `mixed`, both in turn. */
function nextWire(uid: string): Wire {
  const format = process.env.JINDOU_TEST_FORMAT ?? "native";
  sessions += 1;
  const isJson = format === "jsonrpc" || (format === "mixed" && sessions % 2);
  return isJson ? jsonRpcWire(uid) : nativeWire(uid);
}
