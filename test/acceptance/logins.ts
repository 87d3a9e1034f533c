// Logging devices in at the same instant, and what became of each: shared by the tests of kicks. No
// state.

import { setTimeout as pause } from "node:timers/promises";
import type { CloseReason } from "../../src/broker/errors.ts";
import type { DeviceFlag } from "../../src/broker/model.ts";
import type { Broker } from "../support/broker.ts";
import { connectNative, type NativeClientOptions, openNative } from "../support/native-client.ts";
import { type NativeClient, NativeClientError } from "../support/native-session.ts";

export const TOKEN = "the-token";
const TIMEOUT_MS = 120_000;

export type Device = Omit<NativeClientOptions, "port">;

/** A device that logged in, or tried to. */
export interface Contender {
  readonly client: NativeClient;
  /** The close code, once its connection is over. */
  closeCode: number | undefined;
  /** Settles with its connect: undefined, or why it was refused. */
  connected: Promise<string | undefined> | undefined;
}

export interface AtOnce {
  /** How many will remain. Default: 1. */
  readonly survivors?: number;
  /**
   * Each says CONNECT as soon as its own socket is open. Default: when all are open, in one turn of
   * the event loop.
   */
  readonly impatient?: boolean;
}

/**
 * Logs all devices in at the same instant and resolves when the survivors are connected and the
 * others are over.
 */
export async function logInAtOnce(
  broker: Pick<Broker, "clientPort">,
  devices: readonly Device[],
  { survivors = 1, impatient = false }: AtOnce = {},
): Promise<{
  /** All, in the order of `devices`. */
  readonly contenders: readonly Contender[];
  readonly left: readonly NativeClient[];
  readonly ended: readonly Contender[];
}> {
  const contenders = await Promise.all(
    devices.map(async (device) => {
      const contender = watch(await openSocket(broker, device));
      if (impatient) contender.connected = connect(contender.client);
      return contender;
    }),
  );
  for (const one of contenders) one.connected ??= connect(one.client);
  for (const one of contenders) await one.connected;
  const isOver = ({ closeCode }: Contender) => closeCode !== undefined;
  await eventually("the others to be ended", () => {
    return contenders.filter(isOver).length >= devices.length - survivors;
  });
  const left = contenders.filter((one) => !isOver(one));
  for (const { client } of left) await client.ping(); // a kick on its way would come first
  return {
    contenders,
    left: left.map(({ client }) => client),
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

/** A socket that has not said CONNECT. */
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
 * Why the server says it ended the client; undefined: it did not say. Throws when it said anything
 * after that.
 */
export function farewellOf(client: NativeClient): CloseReason | undefined {
  const at = client.pushes.findIndex(({ kind }) => kind === "disconnect");
  if (at === -1) return undefined;
  if (at < client.pushes.length - 1) throw new Error("a push after the end");
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
  if (status !== 200) throw new Error(`token: ${status}`);
}

/** What the control plane says of a user and of all sessions. */
export interface Standing {
  readonly online: number;
  readonly flag: number;
  readonly sessions: number;
  readonly connections: number;
}

export async function standingOf(broker: Broker, uid: string): Promise<Standing> {
  const { body } = await broker.call("/user/onlinestatus", [uid]);
  const metrics = await readMetrics(broker);
  const { online, device_flag: flag } = body[0];
  const connections = metrics("jindou_connections");
  return { online, flag, sessions: metrics("jindou_sessions"), connections };
}

/** How many connections the server ended for `reason` since its start. */
export async function endedFor(broker: Broker, reason: CloseReason): Promise<number> {
  const metrics = await readMetrics(broker);
  return metrics(`jindou_connections_ended_total{reason="${reason}"}`);
}

/** The sum of all series whose name begins so. */
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

/** Resolves once `holds`; rejects after half a minute, naming `what`. */
export async function eventually(
  what: string,
  holds: () => boolean | Promise<boolean>,
): Promise<void> {
  const untilMs = Date.now() + TIMEOUT_MS;
  while (!(await holds())) {
    if (Date.now() > untilMs) throw new Error(`timed out waiting for ${what}`);
    await pause(2);
  }
}
