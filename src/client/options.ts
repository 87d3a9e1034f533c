// The options of `connect`, checked and completed once; checks for the names and ids that an app
// passes, which types do not enforce in JavaScript. No state.

import { type DeviceFlag, GROUP_CHANNEL, isId, PERSON_CHANNEL } from "../broker/model.ts";
import type { Cursor } from "./api.ts";
import { asJindouError, JindouError } from "./errors.ts";
import type { SocketConstructor } from "./socket.ts";
import { within } from "./waiting.ts";

export interface ConnectOptions {
  /** Address of the client listener: `ws://` or `wss://`; `http`, `https` are replaced by these. */
  readonly url: string;
  readonly uid: string;
  /** Registered for uid and deviceFlag; a function is called before each connect. Default: "". */
  readonly token?: string | (() => string | Promise<string>);
  /** 0 app, 1 web, 2 desktop. Default: 1. */
  readonly deviceFlag?: DeviceFlag;
  /** A newer session with the same deviceId replaces this one. Default: random for each client. */
  readonly deviceId?: string;
  /**
   * The app's position in each channel, least recently used first; later messages are delivered.
   * Other channels begin with live messages.
   */
  readonly cursors?: Iterable<Cursor>;
  /**
   * Default: the platform's WebSocket. For Node.js below 22, which has none, that of the package
   * `ws` comes with the SDK.
   */
  readonly webSocket?: SocketConstructor;
  /** Reconnect delay: grows from about minMs to about maxMs. Default: 500 and 30 000. */
  readonly reconnect?: { readonly minMs?: number; readonly maxMs?: number };
  /** Limit of messages, and of other calls, without an answer. Default: 1000. */
  readonly maxQueued?: number;
  readonly timeouts?: Partial<Timeouts>;
}

/** All in milliseconds. */
export interface Timeouts {
  /** For the token, and then until the session is open. Default: 10 000. */
  readonly connectMs: number;
  /** For the answer to a call, including the wait for a connection. Default: 15 000. */
  readonly requestMs: number;
  /** For a message, including the wait for a connection; 0: no limit. Default: 0. */
  readonly sendMs: number;
  /** Silence of the server after which the client sends a ping. Default: 20 000. */
  readonly pingMs: number;
  /** For the answer to a ping; without one the connection is lost. Default: 10 000. */
  readonly pongMs: number;
}

/** The options with every default filled in. */
export interface Settings {
  readonly url: string;
  readonly uid: string;
  /** Rejects with `token_failed`: too slow, failed, or not a string. */
  readonly token: () => Promise<string>;
  readonly deviceFlag: DeviceFlag;
  readonly deviceId: string;
  readonly cursors: readonly Cursor[];
  readonly webSocket: SocketConstructor | undefined;
  readonly reconnect: { readonly minMs: number; readonly maxMs: number };
  readonly maxQueued: number;
  readonly timeouts: Timeouts;
}

const OPTIONS = "url uid token deviceFlag deviceId cursors webSocket reconnect maxQueued timeouts";
const RECONNECT = "minMs maxMs";
/** The defaults; `sendMs` alone may be 0. */
const TIMEOUTS: Timeouts = {
  connectMs: 10_000,
  requestMs: 15_000,
  sendMs: 0,
  pingMs: 20_000,
  pongMs: 10_000,
};

/** The longest delay of `setTimeout`. */
const MAX_NUMBER = 2 ** 31 - 1;

/** Throws `bad_option`, `bad_id`. */
export function settle(options: ConnectOptions): Settings {
  checkNames("connect", options, OPTIONS);
  const { token = "", reconnect = {} } = options;
  checkNames("reconnect", reconnect, RECONNECT);
  const deviceId = options.deviceId ?? randomName();
  for (const [name, id] of Object.entries({ uid: options.uid, deviceId }))
    if (typeof id !== "string" || !isId(id)) throw badId(name);
  const minMs = whole("minMs", reconnect.minMs ?? 500);
  const maxMs = reconnect.maxMs ?? Math.max(minMs, 30_000);
  const timeouts = timeoutsOf(options.timeouts ?? {});
  return {
    uid: options.uid,
    url: socketUrl(options.url),
    token: () => tokenWithin(timeouts.connectMs, token),
    deviceFlag: deviceFlagOf(options.deviceFlag ?? 1),
    deviceId,
    cursors: Array.from(options.cursors ?? [], checkedCursor),
    webSocket: options.webSocket,
    reconnect: { minMs, maxMs: whole("maxMs", maxMs, minMs) },
    maxQueued: whole("maxQueued", options.maxQueued ?? 1000),
    timeouts,
  };
}

function timeoutsOf(given: Partial<Timeouts>): Timeouts {
  const names = Object.keys(TIMEOUTS) as (keyof Timeouts)[]; // it has no others
  checkNames("timeouts", given, names.join(" "));
  const settled = { ...TIMEOUTS };
  for (const name of names)
    settled[name] = whole(name, given[name] ?? TIMEOUTS[name], Math.min(TIMEOUTS[name], 1));
  return settled;
}

async function tokenWithin(
  ms: number,
  given: NonNullable<ConnectOptions["token"]>,
): Promise<string> {
  try {
    const supplied = typeof given === "function" ? given() : given;
    const token = await within(ms, "token_failed", supplied);
    if (typeof token === "string") return token;
  } catch (error) {
    throw asJindouError(error, "token_failed");
  }
  throw new JindouError("token_failed");
}

function whole(option: string, value: number, least = 1): number {
  if (Number.isInteger(value) && value >= least && value <= MAX_NUMBER) return value;
  throw badOption(`${option} must be a whole number from ${least} to ${MAX_NUMBER}`);
}

function deviceFlagOf(flag: DeviceFlag): DeviceFlag {
  if ([0, 1, 2].includes(flag)) return flag;
  throw badOption("deviceFlag must be 0 (app), 1 (web) or 2 (desktop)");
}

function checkedCursor({ channel, lastSeq, lastId = 0 }: Cursor): Cursor {
  const isChannel = [PERSON_CHANNEL, GROUP_CHANNEL].includes(channel?.type) && isId(channel.id);
  const isPosition = [lastSeq, lastId].every((one) => Number.isSafeInteger(one) && one >= 0);
  if (isChannel && isPosition) return { channel, lastSeq, lastId };
  throw badOption("cursors must be what cursors() gave");
}

function socketUrl(url: string): string {
  const address = String(url).replace(/^http/, "ws");
  if (/^wss?:\/\//.test(address)) return address;
  throw badOption("url must begin with wss:// or ws://");
}

/** Throws `bad_option` unless `given` is an object with names of `known` only (space-separated). */
export function checkNames(what: string, given: unknown, known: string): void {
  if (typeof given !== "object" || given === null) throw badOption(`${what} must be an object`);
  for (const name of Object.keys(given)) checkName(what, name, known);
}

/** Throws `bad_option` when `name` is not in `known`. */
export function checkName(what: string, name: string, known: string): void {
  if (!known.split(" ").includes(name))
    throw badOption(`${what}: there is no "${name}", only ${known}`);
}

export function badOption(message: string): JindouError {
  return new JindouError("bad_option", { message });
}

/** `name` is the option or argument that has the id. */
export function badId(name: string): JindouError {
  return new JindouError("bad_id", {
    message: `${name} must have 1 to 128 characters, no control characters and none of @ # &`,
  });
}

const RANDOM_BYTES = 12;

/** 24 random hex digits; `randomUUID` is missing in pages without a secure context. */
export function randomName(): string {
  let name = "";
  for (const byte of crypto.getRandomValues(new Uint8Array(RANDOM_BYTES)))
    name += byte.toString(16).padStart(2, "0");
  return name;
}
