// What a stored message costs Redis at least, whoever asks: a counter, an entry of a log and a publication, sent by bare sockets. What the cluster bench
// compares stored messages with, in the same run. No state.

import { connect, type Socket } from "node:net";
import type { ClusterSample, Course } from "./cluster-loads.ts";
import type { Redis } from "./clusters.ts";
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

/** HINCRBY + XADD + SPUBLISH for each message, over channels of its own for each connection. */
export function redisLimit(
  redis: Redis,
  { connections, depth, subscribers }: LimitLoad,
): Course {
  return {
    name: `Redis alone, ${connections} × ${depth} in flight, ${subscribers} subscribed`,
    async run({ bench: { plan } }): Promise<ClusterSample> {
      const topics = Array.from(
        { length: connections },
        (_, at) => `limit${at}`,
      );
      const sockets = await Promise.all(topics.map(() => open(redis)));
      const ears = await Promise.all(
        Array.from({ length: subscribers }, () => listen(redis, topics)),
      );
      let answered = 0;
      let isOver = false;
      const done = sockets.map((socket, at) =>
        keepAsking(socket, messages(topics[at] ?? "", depth), () => {
          answered += depth;
          return !isOver;
        }),
      );
      await pause(plan.warmupS);
      const before = { answered, cpu: cpuSeconds(redis.pid) };
      const started = performance.now();
      await pause(plan.seconds);
      const count = Math.max(1, answered - before.answered);
      const seconds = (performance.now() - started) / 1000;
      const redisUs = ((cpuSeconds(redis.pid) - before.cpu) * 1e6) / count;
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

async function open({ url }: Redis): Promise<Socket> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname).setNoDelay(true);
  await new Promise<void>((resolve, reject) => {
    socket.once("connect", resolve).once("error", reject);
  });
  return socket;
}

/** A subscriber that reads what comes and forgets it. */
async function listen(
  redis: Redis,
  topics: readonly string[],
): Promise<Socket> {
  const socket = await open(redis);
  socket.write(command("SSUBSCRIBE", ...topics));
  await new Promise((resolve) => socket.once("data", resolve));
  return socket.resume();
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
  const bulks = words.map(
    (word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`,
  );
  return `*${words.length}\r\n${bulks.join("")}`;
}
