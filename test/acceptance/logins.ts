// Logs devices in at the same time and reports how each of them ends. Shared by the tests of kicks.

import { setTimeout as pause } from "node:timers/promises";
import type { CloseReason } from "../../src/broker/errors.ts";
import type { DeviceFlag } from "../../src/broker/model.ts";
import type { Broker } from "../support/broker.ts";
import { connectNative, type NativeClientOptions, openNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";

export const TOKEN = "the-token";
const TIMEOUT_MS = 120_000;
/** Longest pause between two checks of a condition. */
const MAX_PAUSE_MS = 32;

export type Device = Omit<NativeClientOptions, "port">;

/** A device that has logged in or tried to. */
export interface Contender {
  readonly client: NativeClient;
  /** Close code of the connection, `undefined` while it is open. */
  closeCode: number | undefined;
  /** Resolves with `undefined` after a CONNACK, or with the error code if CONNECT is refused. */
  connected: Promise<string | undefined> | undefined;
}

export interface LoginOptions {
  /** Number of devices that will stay online. Default: 1. */
  readonly survivorCount?: number;
  /**
   * True if each device sends CONNECT as soon as its own socket is open. By default all devices
   * send CONNECT in one turn of the event loop, when all sockets are open.
   */
  readonly connectAtOnce?: boolean;
}

/**
 * Logs all devices in at the same time. Resolves when `survivorCount` devices are connected and the
 * connections of the others have ended.
 */
export async function logInAtOnce(
  broker: Pick<Broker, "clientPort">,
  devices: readonly Device[],
  { survivorCount = 1, connectAtOnce = false }: LoginOptions = {},
): Promise<{
  /** All devices, in the order of `devices`. */
  readonly contenders: readonly Contender[];
  readonly survivors: readonly NativeClient[];
  readonly ended: readonly Contender[];
}> {
  const contenders = await Promise.all(
    devices.map(async (device) => {
      const contender = watch(await openSocket(broker, device));
      if (connectAtOnce) contender.connected = connect(contender.client);
      return contender;
    }),
  );
  for (const contender of contenders) contender.connected ??= connect(contender.client);
  for (const { connected } of contenders) await connected;
  const isOver = ({ closeCode }: Contender) => closeCode !== undefined;
  await eventually("the other devices to be disconnected", () => {
    return contenders.filter(isOver).length >= devices.length - survivorCount;
  });
  const survivors = contenders.filter((contender) => !isOver(contender));
  for (const { client } of survivors) await client.ping(); // a kick in flight would arrive before the pong
  return {
    contenders,
    survivors: survivors.map(({ client }) => client),
    ended: contenders.filter(isOver),
  };
}

function watch(client: NativeClient): Contender {
  const contender: Contender = {
    client,
    closeCode: undefined,
    connected: undefined,
  };
  void client.closed.then(({ code }) => {
    contender.closeCode = code;
  });
  return contender;
}

async function connect(client: NativeClient): Promise<string | undefined> {
  try {
    await client.connect();
    return undefined;
  } catch (error) {
    if (error instanceof NativeClientError) return error.code;
    throw error;
  }
}

/** Opens a socket without sending CONNECT. */
export function openSocket(
  broker: Pick<Broker, "clientPort">,
  device: Device,
): Promise<NativeClient> {
  const port = broker.clientPort;
  return openNative(undefined, { timeoutMs: TIMEOUT_MS, ...device, port });
}

export function logIn(broker: Broker, device: Device): Promise<NativeClient> {
  const port = broker.clientPort;
  return connectNative(undefined, { timeoutMs: TIMEOUT_MS, ...device, port });
}

/**
 * Returns the reason in the client's disconnect frame, or `undefined` if there was no such frame.
 * Throws if another push follows the disconnect frame.
 */
export function disconnectReasonOf(client: NativeClient): CloseReason | undefined {
  const at = client.pushes.findIndex(({ kind }) => kind === "disconnect");
  if (at === -1) return undefined;
  if (at < client.pushes.length - 1) throw new Error("a push follows the disconnect frame");
  const push = client.pushes[at];
  return push?.kind === "disconnect" ? push.reason : undefined;
}

export async function registerMain(
  broker: Broker,
  uid: string,
  flag: DeviceFlag = 0,
  token = TOKEN,
): Promise<void> {
  const device = { uid, token, device_flag: flag, device_level: 1 };
  const { status } = await broker.call("/user/token", device);
  if (status !== 200) throw new Error(`/user/token responded with ${status}`);
}

/** Online status of a user, and how many sessions and connections the broker has. */
export interface OnlineState {
  readonly online: number;
  readonly flag: number;
  readonly sessions: number;
  readonly connections: number;
}

export async function onlineStateOf(broker: Broker, uid: string): Promise<OnlineState> {
  const { body } = await broker.call("/user/onlinestatus", [uid]);
  const metrics = await readMetrics(broker);
  const { online, device_flag: flag } = body[0];
  const connections = metrics("jindou_connections");
  return { online, flag, sessions: metrics("jindou_sessions"), connections };
}

/** Returns the number of connections that the server has ended for `reason` since its start. */
export async function endedCount(broker: Broker, reason: CloseReason): Promise<number> {
  const metrics = await readMetrics(broker);
  return metrics(`jindou_connections_ended_total{reason="${reason}"}`);
}

/** Returns a function that sums up all series of a metric. */
async function readMetrics(broker: Broker): Promise<(name: string) => number> {
  const { body } = await broker.call("/metrics");
  const lines = String(body).split("\n");
  return (name) => {
    let sum = 0;
    for (const line of lines)
      if (line.startsWith(`${name} `) || line.startsWith(`${name}{`))
        sum += Number(line.slice(line.lastIndexOf(" ") + 1));
      else if (name.endsWith("}") && line.startsWith(name)) sum += Number(line.slice(name.length));
    return sum;
  };
}

/**
 * Resolves when `holds` returns true. Rejects after `TIMEOUT_MS` with an error that names
 * `condition`. The pauses between the calls to `holds` double, because many conditions call a
 * broker.
 */
export async function eventually(
  condition: string,
  holds: () => boolean | Promise<boolean>,
): Promise<void> {
  const untilMs = Date.now() + TIMEOUT_MS;
  for (let pauseMs = 2; !(await holds()); pauseMs = Math.min(2 * pauseMs, MAX_PAUSE_MS)) {
    if (Date.now() > untilMs) throw new Error(`timed out waiting for ${condition}`);
    await pause(pauseMs);
  }
}
