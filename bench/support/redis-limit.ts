// Measures the minimum cost for Redis of storing a message: incrementing a counter, appending to a
// log and publishing. The commands are sent over plain sockets. The cluster bench compares the cost
// of the broker's stored messages with this minimum.

import { connect, type Socket } from "node:net";
import { SLOTS, slotOf } from "../../src/redis/slots.ts";
import type { ClusterSample, Run } from "./cluster-loads.ts";
import type { Redis, RedisProcess } from "./clusters.ts";
import { PAYLOAD } from "./frames.ts";
import { cpuSeconds } from "./proc.ts";

/** Approximate size of a message's record: the payload and 74 bytes of other fields. */
const RECORD_BYTES = PAYLOAD.length + 74;
/** Number of lines in the replies to one message: one of HINCRBY, two of XADD, one of SPUBLISH. */
const LINES_PER_MESSAGE = 4;
const NEWLINE = 0x0a;

export interface LimitLoad {
  readonly connections: number;
  /**
   * Number of messages that each connection writes at once. The connection writes the next messages
   * after Redis has replied to all of them.
   */
  readonly depth: number;
  /** Number of subscribers of each message's topic. */
  readonly subscribers: number;
}

/**
 * Returns a run that sends HINCRBY, XADD and SPUBLISH for each message. Each connection has its own
 * channel, and on a Redis Cluster it connects to the server of the channel's slot.
 */
export function redisLimit(redis: Redis, { connections, depth, subscribers }: LimitLoad): Run {
  return {
    name: `Redis alone, ${connections} × ${depth} in flight, ${subscribers} subscribed`,
    async run({ bench: { plan } }): Promise<ClusterSample> {
      const topics = Array.from({ length: connections }, (_, at) => `limit${at}`);
      const sockets = await Promise.all(topics.map((topic) => open(serverOf(redis, topic))));
      const subscriberSockets = await Promise.all(
        Array.from({ length: subscribers }, () => subscribe(redis, topics)),
      ).then((socketLists) => socketLists.flat());
      let answered = 0;
      let isEnding = false;
      const done = sockets.map((socket, at) =>
        repeatRequest(socket, messages(topics[at] ?? "", depth), () => {
          answered += depth;
          return !isEnding;
        }),
      );
      await pause(plan.warmupS);
      const before = { answered, cpu: usedSeconds(redis) };
      const started = performance.now();
      await pause(plan.seconds);
      const count = Math.max(1, answered - before.answered);
      const seconds = (performance.now() - started) / 1000;
      const redisUs = ((usedSeconds(redis) - before.cpu) * 1e6) / count;
      isEnding = true;
      await Promise.all(done);
      for (const socket of [...sockets, ...subscriberSockets]) socket.destroy();
      return { value: count / seconds, redisUs, busiestUs: 0 };
    },
  };
}

function pause(seconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, seconds * 1000));
}

function usedSeconds({ processes }: Redis): number {
  return processes.reduce((sum, { pid }) => sum + cpuSeconds(pid), 0);
}

/**
 * Returns the server of the topic's slot. `redis-cli --cluster create` divides the slots equally
 * among the primaries, in their order.
 */
function serverOf({ processes }: Redis, topic: string): RedisProcess {
  const slot = slotOf(topic);
  const share = SLOTS / processes.length;
  const server = processes.find((_, at) => slot < Math.round((at + 1) * share));
  if (server === undefined) throw new Error("no server has the slot of the topic");
  return server;
}

async function open({ port }: RedisProcess): Promise<Socket> {
  const socket = connect(port, "127.0.0.1").setNoDelay(true);
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", resolve).once("error", reject);
  });
  return socket;
}

/** Opens a subscriber on each server that has some of the topics. Subscribers discard all data. */
async function subscribe(redis: Redis, topics: readonly string[]): Promise<readonly Socket[]> {
  const servers = new Set(topics.map((topic) => serverOf(redis, topic)));
  return Promise.all(
    [...servers].map(async (server) => {
      const socket = await open(server);
      for (const topic of topics)
        if (serverOf(redis, topic) === server) socket.write(command("SSUBSCRIBE", topic));
      await new Promise((resolve) => socket.once("data", resolve));
      return socket.resume();
    }),
  );
}

/**
 * Writes the request again each time all its replies have arrived, until `shouldContinue` returns
 * false.
 */
function repeatRequest(
  socket: Socket,
  { request, count }: { readonly request: Buffer; readonly count: number },
  shouldContinue: () => boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let lines = 0;
    socket.on("error", reject);
    socket.on("data", (bytes: Buffer) => {
      for (const byte of bytes) if (byte === NEWLINE) lines += 1;
      if (lines < count * LINES_PER_MESSAGE) return;
      lines = 0;
      if (shouldContinue()) socket.write(request);
      else resolve();
    });
    socket.write(request);
  });
}

function messages(name: string, count: number) {
  const record = "r".repeat(RECORD_BYTES);
  const singleRequest = [
    command("HINCRBY", `limit:{${name}}:head`, "seq", "1"),
    command("XADD", `limit:{${name}}:log`, "*", "r", record),
    command("SPUBLISH", name, record),
  ].join("");
  return { request: Buffer.from(singleRequest.repeat(count)), count };
}

function command(...words: readonly string[]): string {
  const bulks = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  return `*${words.length}\r\n${bulks.join("")}`;
}
