// What a stored message costs Redis at least, for any client: a counter, an entry of a log and a
// publication, sent by bare sockets. What the cluster bench compares stored messages with, in the
// same run. No state.

import { connect, type Socket } from "node:net";
import { SLOTS, slotOf } from "../../src/redis/slots.ts";
import type { ClusterSample, Course } from "./cluster-loads.ts";
import type { Redis, RedisProcess } from "./clusters.ts";
import { PAYLOAD } from "./frames.ts";
import { cpuSeconds } from "./proc.ts";

/** About what a message's record has beside its payload. */
const RECORD_BYTES = PAYLOAD.length + 74;
/** Each reply ends a line; that of XADD has two. */
const LINES_PER_MESSAGE = 4;
const NEWLINE = 0x0a;

export interface LimitLoad {
  readonly connections: number;
  /** Messages of each connection that are written at once, and answered before the next ones. */
  readonly depth: number;
  /** Connections that are subscribed to every message's topic. */
  readonly subscribers: number;
}

/**
 * HINCRBY + XADD + SPUBLISH for each message, over a channel of its own for each connection; on a
 * Redis Cluster each is at the server of its channel's slot.
 */
export function redisLimit(redis: Redis, { connections, depth, subscribers }: LimitLoad): Course {
  return {
    name: `Redis alone, ${connections} × ${depth} in flight, ${subscribers} subscribed`,
    async run({ bench: { plan } }): Promise<ClusterSample> {
      const topics = Array.from({ length: connections }, (_, at) => `limit${at}`);
      const sockets = await Promise.all(topics.map((topic) => open(serverOf(redis, topic))));
      const ears = await Promise.all(
        Array.from({ length: subscribers }, () => listen(redis, topics)),
      ).then((all) => all.flat());
      let answered = 0;
      let isOver = false;
      const done = sockets.map((socket, at) =>
        keepAsking(socket, messages(topics[at] ?? "", depth), () => {
          answered += depth;
          return !isOver;
        }),
      );
      await pause(plan.warmupS);
      const before = { answered, cpu: usedSeconds(redis) };
      const started = performance.now();
      await pause(plan.seconds);
      const count = Math.max(1, answered - before.answered);
      const seconds = (performance.now() - started) / 1000;
      const redisUs = ((usedSeconds(redis) - before.cpu) * 1e6) / count;
      isOver = true;
      await Promise.all(done);
      for (const socket of [...sockets, ...ears]) socket.destroy();
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

/** `redis-cli --cluster create` gives each primary an equal share of the slots, in their order. */
function serverOf({ processes }: Redis, topic: string): RedisProcess {
  const slot = slotOf(topic);
  const share = SLOTS / processes.length;
  const found = processes.find((_, at) => slot < Math.round((at + 1) * share));
  if (found === undefined) throw new Error("No server has the slot");
  return found;
}

async function open({ port }: RedisProcess): Promise<Socket> {
  const socket = connect(port, "127.0.0.1").setNoDelay(true);
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", resolve).once("error", reject);
  });
  return socket;
}

/** A subscriber that reads what comes and forgets it, at each server that has topics. */
async function listen(redis: Redis, topics: readonly string[]): Promise<readonly Socket[]> {
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

/** Writes `request` again each time all of it is answered, for as long as `goesOn` says. */
function keepAsking(
  socket: Socket,
  { request, count }: { readonly request: Buffer; readonly count: number },
  goesOn: () => boolean,
): Promise<void> {
  return new Promise((resolve, reject) => {
    let lines = 0;
    socket.on("error", reject);
    socket.on("data", (bytes: Buffer) => {
      for (const byte of bytes) if (byte === NEWLINE) lines += 1;
      if (lines < count * LINES_PER_MESSAGE) return;
      lines = 0;
      if (goesOn()) socket.write(request);
      else resolve();
    });
    socket.write(request);
  });
}

function messages(name: string, count: number) {
  const record = "r".repeat(RECORD_BYTES);
  const one = [
    command("HINCRBY", `limit:{${name}}:head`, "seq", "1"),
    command("XADD", `limit:{${name}}:log`, "*", "r", record),
    command("SPUBLISH", name, record),
  ].join("");
  return { request: Buffer.from(one.repeat(count)), count };
}

function command(...words: readonly string[]): string {
  const bulks = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  return `*${words.length}\r\n${bulks.join("")}`;
}
