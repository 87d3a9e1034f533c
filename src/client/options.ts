// Checks the options of `connect` and fills in their defaults. Also checks the names and ids that
// an app passes to other calls, because an app in JavaScript has no type checks.

import {
  type ChannelRef,
  type DeviceFlag,
  GROUP_CHANNEL,
  isId,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import { decodeUtf8 } from "../lib/utf8.ts";
import type { Cursor } from "./api.ts";
import { asJindouError, JindouError } from "./errors.ts";
import type { SocketConstructor } from "./socket.ts";
import { within } from "./waiting.ts";

export interface ConnectOptions {
  /** URL of the broker's client listener: `wss://`, `ws://`, `https://` or `http://`. */
  readonly url: string;
  readonly uid: string;
  /**
   * Token of the user for `deviceFlag`, or a function that returns the token. The function is
   * called before each connection attempt and before each HTTP call that sends the token. It is
   * called once more if the server refuses the token of a connection. It is also called before a
   * JWT expires, to replace the JWT on the open connection. Default: "".
   */
  readonly token?: string | (() => string | Promise<string>) | undefined;
  /** Device class: 0 app, 1 web, 2 desktop. Default: 1. */
  readonly deviceFlag?: DeviceFlag | undefined;
  /** Device id. A later session with the same id replaces this session. Default: random. */
  readonly deviceId?: string | undefined;
  /**
   * The app's position in each channel, least recently used first. Messages after the position are
   * delivered. In channels without a position, delivery starts with live messages.
   */
  readonly cursors?: Iterable<Cursor> | undefined;
  /**
   * WebSocket class. Default in Node.js and Deno: the class of the `ws` package, which is part of
   * the SDK. Default on other platforms: the class of the platform.
   */
  readonly webSocket?: SocketConstructor | undefined;
  /**
   * Delay before a reconnect, in milliseconds. It is at most `minMs` (default 500) at first, and
   * grows with further failed attempts to at most `maxMs` (default 30,000).
   */
  readonly reconnect?:
    | { readonly minMs?: number | undefined; readonly maxMs?: number | undefined }
    | undefined;
  /**
   * Maximum number of unacknowledged messages. Also the maximum number of other calls that wait for
   * a reply. Further calls are rejected with `queue_full`. Default: 1000.
   */
  readonly maxQueued?: number | undefined;
  readonly timeouts?: { readonly [K in keyof Timeouts]?: Timeouts[K] | undefined } | undefined;
}

/** Time limits of a client, in milliseconds. */
export interface Timeouts {
  /**
   * Maximum time until the `token` function returns. Also the maximum time until the session opens
   * after that. Default: 10,000.
   */
  readonly connectMs: number;
  /** Maximum duration of a call, including the wait for a connection. Default: 15,000. */
  readonly requestMs: number;
  /** Maximum time until a message is acknowledged. Default: 0, no limit. */
  readonly sendMs: number;
  /** Time without data from the server after which the client sends a ping. Default: 20,000. */
  readonly pingMs: number;
  /** Maximum time to wait for a pong before reconnecting. Default: 10,000. */
  readonly pongMs: number;
}

export interface Settings {
  readonly url: string;
  readonly uid: string;
  readonly token: () => Promise<string>;
  readonly hasTokenFunction: boolean;
  readonly deviceFlag: DeviceFlag;
  readonly deviceId: string;
  readonly cursors: readonly Cursor[];
  readonly webSocket: SocketConstructor | undefined;
  readonly reconnect: { readonly minMs: number; readonly maxMs: number };
  readonly maxQueued: number;
  readonly timeouts: Timeouts;
}

const CONNECT_OPTIONS =
  "url uid token deviceFlag deviceId cursors webSocket reconnect maxQueued timeouts";
const RECONNECT_OPTIONS = "minMs maxMs";
const DEFAULT_TIMEOUTS: Timeouts = {
  connectMs: 10_000,
  requestMs: 15_000,
  sendMs: 0,
  pingMs: 20_000,
  pongMs: 10_000,
};

/** Maximum value of every numeric option: the maximum delay of `setTimeout`. */
const MAX_INTEGER = 2 ** 31 - 1;

/**
 * Returns the settings for these options. Throws `bad_option` or `bad_id` if an option is invalid.
 */
export function settingsFrom(options: ConnectOptions): Settings {
  checkNames("connect", options, CONNECT_OPTIONS);
  decodeUtf8(new Uint8Array()); // throws if TextDecoder is missing and has no replacement
  const { token = "", reconnect = {} } = options;
  checkNames("reconnect", reconnect, RECONNECT_OPTIONS);
  const deviceId = options.deviceId ?? randomId();
  for (const [name, id] of Object.entries({ uid: options.uid, deviceId }))
    if (typeof id !== "string" || !isId(id)) throw badId(name);
  const minMs = checkedInteger("minMs", reconnect.minMs ?? 500);
  const maxMs = reconnect.maxMs ?? Math.max(minMs, 30_000);
  const timeouts = timeoutsOf(options.timeouts ?? {});
  return {
    uid: options.uid,
    url: socketUrl(options.url),
    token: shared(() => tokenWithin(timeouts.connectMs, token)),
    hasTokenFunction: typeof token === "function",
    deviceFlag: deviceFlagOf(options.deviceFlag ?? 1),
    deviceId,
    cursors: Array.from(options.cursors ?? [], checkedCursor),
    webSocket: options.webSocket,
    reconnect: { minMs, maxMs: checkedInteger("maxMs", maxMs, minMs) },
    maxQueued: checkedInteger("maxQueued", options.maxQueued ?? 1000),
    timeouts,
  };
}

function timeoutsOf(options: NonNullable<ConnectOptions["timeouts"]>): Timeouts {
  // `DEFAULT_TIMEOUTS` has no other keys
  const names = Object.keys(DEFAULT_TIMEOUTS) as (keyof Timeouts)[];
  checkNames("timeouts", options, names.join(" "));
  const timeouts = { ...DEFAULT_TIMEOUTS };
  for (const name of names)
    timeouts[name] = checkedInteger(
      name,
      options[name] ?? DEFAULT_TIMEOUTS[name],
      Math.min(DEFAULT_TIMEOUTS[name], 1),
    );
  return timeouts;
}

/** Returns a function whose concurrent calls share one call to `load`. */
function shared<T>(load: () => Promise<T>): () => Promise<T> {
  let loading: Promise<T> | undefined;
  return () => {
    loading ??= load().finally(() => {
      loading = undefined;
    });
    return loading;
  };
}

async function tokenWithin(
  ms: number,
  tokenOption: NonNullable<ConnectOptions["token"]>,
): Promise<string> {
  try {
    const supplied = typeof tokenOption === "function" ? tokenOption() : tokenOption;
    const token = await within(ms, "token_failed", supplied);
    if (typeof token === "string") return token;
  } catch (error) {
    throw asJindouError(error, "token_failed");
  }
  throw new JindouError("token_failed");
}

function checkedInteger(option: string, value: number, min = 1): number {
  if (Number.isInteger(value) && value >= min && value <= MAX_INTEGER) return value;
  throw badOption(`${option} must be an integer from ${min} to ${MAX_INTEGER}`);
}

function deviceFlagOf(flag: DeviceFlag): DeviceFlag {
  if ([0, 1, 2].includes(flag)) return flag;
  throw badOption("deviceFlag must be 0 (app), 1 (web) or 2 (desktop)");
}

function checkedCursor({ channel, lastSeq, lastId = 0 }: Cursor): Cursor {
  const isChannel = [PERSON_CHANNEL, GROUP_CHANNEL].includes(channel?.type) && isId(channel.id);
  const isPosition = [lastSeq, lastId].every(
    (position) => Number.isSafeInteger(position) && position >= 0,
  );
  if (isChannel && isPosition)
    return { channel: { id: channel.id, type: channel.type }, lastSeq, lastId };
  throw badOption("cursors must be values that cursors() returned");
}

function socketUrl(url: string): string {
  const address = String(url).replace(/^http/, "ws");
  if (/^wss?:\/\//.test(address)) return address;
  throw badOption("url must begin with wss://, ws://, https:// or http://");
}

/** Returns a copy of the channel. Throws `bad_option` if the value is not a channel. */
export function checkedChannel(channel: ChannelRef): ChannelRef {
  const { id, type } = (channel ?? {}) as Partial<ChannelRef>;
  if (typeof id === "string" && typeof type === "number") return { id, type };
  const example = typeof channel === "string" ? channel : "lobby";
  throw badOption(
    `channel must be group("${example}") or person("${example}"), not ${typeof channel}`,
  );
}

/** Throws `bad_option` unless `value` is an object whose keys are all in `allowed`. */
export function checkNames(subject: string, value: unknown, allowed: string): void {
  if (typeof value !== "object" || value === null) throw badOption(`${subject} must be an object`);
  for (const name of Object.keys(value)) checkName(subject, name, allowed);
}

/** Throws `bad_option` if `name` is not in `allowed`, a list of names separated by spaces. */
export function checkName(subject: string, name: string, allowed: string): void {
  if (!allowed.split(" ").includes(name))
    throw badOption(`${subject}: "${name}" is not one of ${allowed}`);
}

export function badOption(message: string): JindouError {
  return new JindouError("bad_option", { message });
}

export function badId(name: string): JindouError {
  return new JindouError("bad_id", {
    message: `${name} must have 1 to 128 characters, no control characters and none of @ # &`,
  });
}

const RANDOM_BYTES = 12;

/**
 * Returns 24 hex digits. `crypto.randomUUID` would need a secure context, and React Native and
 * mini programs have no `crypto` at all.
 */
export function randomId(): string {
  const bytes = new Uint8Array(RANDOM_BYTES);
  if (typeof crypto === "undefined") for (const n of bytes.keys()) bytes[n] = Math.random() * 256;
  else crypto.getRandomValues(bytes);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
