// The options of `connect`, checked and completed once. No state.

import {
  type DeviceFlag,
  GROUP_CHANNEL,
  isId,
  PERSON_CHANNEL,
} from "../broker/model.ts";
import type { Cursor } from "./api.ts";
import { within } from "./deferred.ts";
import { asJindouError, JindouError } from "./errors.ts";
import { badId, badOption, checkNames } from "./named.ts";
import { randomName } from "./names.ts";
import type { SocketConstructor } from "./socket.ts";

export interface ConnectOptions {
  /** `ws://` or `wss://` (`http`, `https` are taken for these) and the address of the client listener. */
  readonly url: string;
  readonly uid: string;
  /** As registered for the user and deviceFlag; a function is asked before each connect. Default: "". */
  readonly token?: string | (() => string | Promise<string>);
  /** 0 app, 1 web, 2 desktop. Default: 1. */
  readonly deviceFlag?: DeviceFlag;
  /** The name of this device: a newer session with the same one replaces this one. Default: a new name for each client. */
  readonly deviceId?: string;
  /** What the app has of each channel, least recently used first; it gets everything after. Other channels begin with live messages. */
  readonly cursors?: Iterable<Cursor>;
  /** Instead of the platform's WebSocket (or, where there is none, that of the package `ws`). */
  readonly webSocket?: SocketConstructor;
  /** Pauses between tries: they grow from about minMs to about maxMs. Default: 500 and 30 000. */
  readonly reconnect?: { readonly minMs?: number; readonly maxMs?: number };
  /** Most messages, and most other calls, that may wait for their answer. Default: 1000. */
  readonly maxQueued?: number;
  readonly timeouts?: Partial<Timeouts>;
}

/** All in milliseconds. */
export interface Timeouts {
  /** From the first byte to an open session, the token included. Default: 10 000. */
  readonly connectMs: number;
  /** For the answer to a call, waiting for a connection included. Default: 15 000. */
  readonly requestMs: number;
  /** For a message to be sent, waiting for a connection included; 0: as long as it takes. Default: 0. */
  readonly sendMs: number;
  /** So long nothing may be heard of the server before it is asked for a sign of life. Default: 20 000. */
  readonly pingMs: number;
  /** So long it may take to give one, else the connection counts as lost. Default: 10 000. */
  readonly pongMs: number;
}

/** The options with nothing left open. */
export interface Settings {
  readonly url: string;
  readonly uid: string;
  /** Rejects with `token_failed` when it takes too long, throws, or gives no string. */
  readonly token: () => Promise<string>;
  readonly deviceFlag: DeviceFlag;
  readonly deviceId: string;
  readonly cursors: readonly Cursor[];
  readonly webSocket: SocketConstructor | undefined;
  readonly reconnect: { readonly minMs: number; readonly maxMs: number };
  readonly maxQueued: number;
  readonly timeouts: Timeouts;
}

const OPTIONS =
  "url uid token deviceFlag deviceId cursors webSocket reconnect maxQueued timeouts";
const RECONNECT = "minMs maxMs";
const TIMEOUTS = "connectMs requestMs sendMs pingMs pongMs";

/** Timers take no more. */
const MAX_NUMBER = 2 ** 31 - 1;

/** Throws `bad_option`, `bad_id`. */
export function settle(options: ConnectOptions): Settings {
  checkNames("connect", options, OPTIONS);
  const { token = "", reconnect = {}, timeouts = {} } = options;
  checkNames("reconnect", reconnect, RECONNECT);
  checkNames("timeouts", timeouts, TIMEOUTS);
  const deviceId = options.deviceId ?? randomName();
  for (const [name, id] of Object.entries({ uid: options.uid, deviceId }))
    if (typeof id !== "string" || !isId(id)) throw badId(name);
  const minMs = whole("minMs", reconnect.minMs ?? 500);
  const maxMs = reconnect.maxMs ?? Math.max(minMs, 30_000);
  const connectMs = whole("connectMs", timeouts.connectMs ?? 10_000);
  return {
    uid: options.uid,
    url: socketUrl(options.url),
    token: () => tokenWithin(connectMs, token),
    deviceFlag: deviceFlagOf(options.deviceFlag ?? 1),
    deviceId,
    cursors: Array.from(options.cursors ?? [], checkedCursor),
    webSocket: options.webSocket,
    reconnect: { minMs, maxMs: whole("maxMs", maxMs, minMs) },
    maxQueued: whole("maxQueued", options.maxQueued ?? 1000),
    timeouts: {
      connectMs,
      requestMs: whole("requestMs", timeouts.requestMs ?? 15_000),
      sendMs: whole("sendMs", timeouts.sendMs ?? 0, 0),
      pingMs: whole("pingMs", timeouts.pingMs ?? 20_000),
      pongMs: whole("pongMs", timeouts.pongMs ?? 10_000),
    },
  };
}

async function tokenWithin(
  ms: number,
  given: NonNullable<ConnectOptions["token"]>,
): Promise<string> {
  try {
    const token = await within(ms, "token_failed", (late) =>
      Promise.race([typeof given === "function" ? given() : given, late]),
    );
    if (typeof token === "string") return token;
  } catch (error) {
    throw asJindouError(error, "token_failed");
  }
  throw new JindouError("token_failed");
}

function whole(option: string, value: number, least = 1): number {
  if (Number.isInteger(value) && value >= least && value <= MAX_NUMBER)
    return value;
  throw badOption(
    `${option} must be a whole number from ${least} to ${MAX_NUMBER}`,
  );
}

function deviceFlagOf(flag: DeviceFlag): DeviceFlag {
  if ([0, 1, 2].includes(flag)) return flag;
  throw badOption("deviceFlag must be 0 (app), 1 (web) or 2 (desktop)");
}

function checkedCursor({ channel, lastSeq, lastId = 0 }: Cursor): Cursor {
  const isChannel =
    [PERSON_CHANNEL, GROUP_CHANNEL].includes(channel?.type) && isId(channel.id);
  const isPlace = [lastSeq, lastId].every(
    (one) => Number.isSafeInteger(one) && one >= 0,
  );
  if (isChannel && isPlace) return { channel, lastSeq, lastId };
  throw badOption("cursors must be what cursors() gave");
}

function socketUrl(url: string): string {
  const address = String(url).replace(/^http/, "ws");
  if (/^wss?:\/\//.test(address)) return address;
  throw badOption(
    "url must begin with wss:// or ws://: the address of the client listener",
  );
}
