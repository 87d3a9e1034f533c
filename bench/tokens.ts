// How much processor time does a connect with a JWT cost the server, compared with a registered
// token? The users of one server connect with each kind of token in turn. The server verifies the
// signature of a JWT when it is first used, and keeps the result.

import { createHmac } from "node:crypto";
import { writeFileSync } from "node:fs";
import { connect, type Socket } from "node:net";
import { join } from "node:path";
import { backendOf, TOKEN } from "./support/backend.ts";
import type { Bench, Benchmark, Row, Sample } from "./support/benchmark.ts";
import { inParallel, waitUntilIdle } from "./support/cost.ts";
import { connectFrame, NATIVE_UPGRADE } from "./support/frames.ts";
import { memberName } from "./support/members.ts";
import { threadSeconds } from "./support/proc.ts";
import { type Server, startBroker } from "./support/servers.ts";
import { row } from "./support/stats.ts";

const USERS = 4000;
const QUICK_USERS = 100;
const CONCURRENCY = 100;
/** Number of times that all users connect before the code counts as compiled. */
const WARMUPS = 2;
const LIFE_S = 3600;
const SECRET = "the secret with which this bench signs its tokens";
/**
 * Maximum additional processor time of a connect with a JWT that is already verified, compared with
 * a connect with a registered token.
 */
const MAX_MORE_US = 10;

type TokenOf = (uid: string) => string;

export const tokens: Benchmark = {
  name: "tokens",
  question: "connects with a JWT, compared with connects with a registered token",
  isPinned: true,

  async run(bench) {
    const { plan, workbench } = bench;
    const [, ours] = bench.subjects;
    if (ours.kind !== "broker") throw new Error("this bench measures a build of the broker");
    const secretFile = join(workbench.folder("tokens"), "secret");
    writeFileSync(secretFile, SECRET);
    const server = await startBroker(workbench, ours, undefined, {
      JINDOU_AUTH_CLIENTS: "token+jwt",
      JINDOU_AUTH_JWT_ALGORITHMS: "HS256",
      JINDOU_AUTH_JWT_SECRET_FILE: secretFile,
    });
    const uids = Array.from({ length: plan.isQuick ? QUICK_USERS : USERS }, (_, at) =>
      memberName(at),
    );
    const backend = backendOf(server);
    await backend.registerUsers(uids);
    backend.close();
    const costOf = (tokenOf: TokenOf) => costOfConnects(server, uids, tokenOf);
    for (let round = 0; round < WARMUPS; round++) {
      await costOf(() => TOKEN);
      await costOf(jwtsOf(uids, `warm-up ${round}`));
    }
    const samples = { registered: [], first: [], cached: [], more: [] } as Samples;
    for (let round = 0; round < plan.rounds; round++) {
      const jwtOf = jwtsOf(uids, `round ${round}`);
      const first = await costOf(jwtOf);
      const registered = await costOf(() => TOKEN);
      const cached = await costOf(jwtOf);
      for (const [key, value] of Object.entries({ first, registered, cached }))
        samples[key as keyof Samples].push({ value }); // `Object.entries` loses the type of keys
      samples.more.push({ value: cached - registered });
    }
    await server.stop();
    return rowsOf(bench, samples);
  },
};

type Samples = Record<"registered" | "first" | "cached" | "more", Sample[]>;

function rowsOf(bench: Bench, { registered, first, cached, more }: Samples): readonly Row[] {
  const [, ours] = bench.subjects;
  const subjects = [{ name: "registered token" }, ours] as const;
  const target = { kind: "value", atMost: MAX_MORE_US } as const;
  return [
    row({ title: "a connect with a JWT for the first time", unit: "µs" }, subjects, [
      registered,
      first,
    ]),
    row({ title: "a connect with a JWT that is remembered", unit: "µs" }, subjects, [
      registered,
      cached,
    ]),
    row(
      { title: "the same, less a registered token", unit: "µs", target },
      [ours, ours],
      [more, more],
    ),
  ];
}

/** Signs a new token for each user in advance. Returns a function that returns a user's token. */
function jwtsOf(uids: readonly string[], id: string): TokenOf {
  const iat = Math.floor(Date.now() / 1000);
  const header = base64({ alg: "HS256", typ: "JWT" });
  const jwts = new Map(
    uids.map((sub) => {
      const signed = `${header}.${base64({ sub, iat, exp: iat + LIFE_S, jti: id })}`;
      return [sub, `${signed}.${createHmac("sha256", SECRET).update(signed).digest("base64url")}`];
    }),
  );
  return (uid) => jwts.get(uid) ?? "";
}

function base64(value: object): string {
  return Buffer.from(JSON.stringify(value)).toString("base64url");
}

/** Connects all users. Returns the server's processor time for each connect in microseconds. */
async function costOfConnects(
  server: Server,
  uids: readonly string[],
  tokenOf: TokenOf,
): Promise<number> {
  const sockets: Socket[] = [];
  await waitUntilIdle(server);
  const before = threadSeconds(server.pid);
  await inParallel(uids, CONCURRENCY, async (uid) => {
    sockets.push(await openSession(server.clientPort, connectFrame(uid, tokenOf(uid))));
  });
  await waitUntilIdle(server);
  const us = ((threadSeconds(server.pid) - before) * 1e6) / uids.length;
  for (const socket of sockets) socket.destroy();
  await waitUntilIdle(server);
  return us;
}

const HEAD_END = "\r\n\r\n";
/** Operation number of CONNACK. In a frame, it follows the frame header and the array header. */
const CONNACK = 65;
const MAX_HEADER_BYTES = 8;

/**
 * Opens a WebSocket and sends CONNECT. Resolves when the CONNACK arrives. Rejects if a different
 * frame arrives or the connection ends first.
 */
function openSession(port: number, frame: Uint8Array): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connect(port, "127.0.0.1", () => socket.write(NATIVE_UPGRADE));
    socket.once("data", (head) => {
      if (!head.includes(HEAD_END)) return reject(new Error("the upgrade response is incomplete"));
      socket.write(frame);
      socket.once("data", (reply) => {
        if (reply.subarray(0, MAX_HEADER_BYTES).includes(CONNACK)) resolve(socket);
        else reject(new Error("the server refused a connect"));
      });
    });
    socket.on("error", reject);
    socket.on("close", () => reject(new Error("the server closed a connection")));
  });
}
