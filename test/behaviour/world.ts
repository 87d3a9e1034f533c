// Shared by the behaviour tests: a real broker with short functions for the calls of backends and
// clients. Each world counts the names it has created, so that the tests of one file can share a
// broker.

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

/** Timeout of every wait. It is long enough for a machine that is busy with other tests. */
export const TIMEOUT_MS = 120_000;

export const person = (uid: string): ChannelRef => ({ id: uid, type: 1 });
export const group = (id: string): ChannelRef => ({ id, type: 2 });

export interface DeviceOptions {
  readonly flag?: DeviceFlag;
  readonly level?: DeviceLevel;
  readonly token?: string;
}

export type ConnectOptions = Partial<Omit<NativeClientOptions, "uid" | "port">>;

export interface World extends Broker {
  /** Returns a name that no other test of this world uses. */
  name(prefix: string): string;
  /** POSTs a body that must be accepted. Returns the body of the response. */
  ok(path: string, body: unknown): Promise<ApiResponse["body"]>;
  /** POSTs a body. Returns `<status> <code>`. */
  refusal(path: string, body: unknown): Promise<string>;
  /** Registers a device class. Its token is `token-<uid>` unless `device` names one. */
  register(uid: string, device?: DeviceOptions): Promise<void>;
  /** Connects with the token `token-<uid>` unless `options` names one. */
  connect(t: Test, uid: string, options?: ConnectOptions): Promise<NativeClient>;
  /** Registers a device class and connects it. */
  join(t: Test, uid: string, options?: ConnectOptions & DeviceOptions): Promise<NativeClient>;
  /** Creates a group with these members. */
  newGroup(members: readonly string[], flags?: object): Promise<ChannelRef>;
  /** Sends a text message over HTTP. `fields` replace fields of the body. */
  send(from: string, channel: ChannelRef, text: string, fields?: object): Promise<ApiResponse>;
  /**
   * Resolves when every session receives the messages of the groups its user is a member of. A
   * session may miss an unstored message that is sent earlier.
   */
  untilSubscribed(): Promise<void>;
  /** Returns the online status of one user. */
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
    get wkprotoPort() {
      return broker.wkprotoPort;
    },
    name(prefix) {
      names += 1;
      return `${prefix}-${names}`;
    },

    async ok(path, body) {
      const { status, body: response } = await broker.call(path, body);
      if (status !== 200) throw new Error(`${path} failed: ${JSON.stringify(response)}`);
      return response;
    },

    async refusal(path, body) {
      const { status, body: response } = await broker.call(path, body);
      return `${status} ${response.code}`;
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
        timeoutMs: TIMEOUT_MS,
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

    send: (from, channel, text, fields = {}) =>
      broker.call("/message/send", {
        from_uid: from,
        ...wire(channel),
        payload: textPayload(text),
        ...fields,
      }),

    async untilSubscribed() {
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

/** Returns the fields of a channel for HTTP bodies. */
export function wire(channel: ChannelRef) {
  return { channel_id: channel.id, channel_type: channel.type };
}

/** Calls `holds` until it returns true. Rejects after `TIMEOUT_MS`. */
export async function eventually(
  holds: () => boolean | Promise<boolean>,
  everyMs = 25,
): Promise<void> {
  const deadline = performance.now() + TIMEOUT_MS;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error("the condition did not become true in time");
    await new Promise((resolve) => setTimeout(resolve, everyMs));
  }
}

/** Returns the error code of a client's request or connect, `ok` if it succeeds. */
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
 * Returns the texts of all messages pushed to the client so far. The `ping` ensures that everything
 * published before has arrived.
 */
export async function receivedTexts(client: NativeClient): Promise<readonly string[]> {
  await client.ping();
  return client.messages.map(textOf);
}

/** Waits until the client has received `count` messages. Returns the texts of all its messages. */
export async function untilReceived(
  client: NativeClient,
  count: number,
): Promise<readonly string[]> {
  await client.waitFor(() => client.messages.length >= count, `${count} messages`);
  return receivedTexts(client);
}

/**
 * Sends large messages until a user who does not read is disconnected. Returns the number of
 * messages sent.
 */
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
    if (sent > 1000) throw new Error("the user is still online with 60 MB of unread messages");
    await Promise.all(range(1, 20).map(() => world.send(from, channel, bulk)));
    sent += 20;
  }
  return sent;
}

/**
 * Returns how a connection ended: the reason of the disconnect frame, or `silent`, and the close
 * code.
 */
export async function endingOf(client: NativeClient): Promise<string> {
  const { code } = await client.closed;
  const disconnect = client.pushes.find((push) => push.kind === "disconnect");
  return `${disconnect?.kind === "disconnect" ? disconnect.reason : "silent"} ${code}`;
}

/** Returns the texts of messages. */
export const textsOf = (messages: readonly Message[]): readonly string[] => messages.map(textOf);

export const seqs = (messages: readonly Message[]): readonly number[] =>
  messages.map((message) => message.messageSeq);

/** Returns the integers from `first` to `last`, in descending order if `last` is smaller. */
export function range(first: number, last: number): readonly number[] {
  const step = last < first ? -1 : 1;
  return Array.from({ length: Math.abs(last - first) + 1 }, (_, i) => first + i * step);
}

let sessions = 0;

/**
 * Returns the wire format of the next session, by JINDOU_TEST_FORMAT: `native` (default),
 * `jsonrpc`, or `mixed` for both in turn.
 */
function nextWire(uid: string): Wire {
  const format = process.env.JINDOU_TEST_FORMAT ?? "native";
  sessions += 1;
  const isJson = format === "jsonrpc" || (format === "mixed" && sessions % 2);
  return isJson ? jsonRpcWire(uid) : nativeWire(uid);
}
