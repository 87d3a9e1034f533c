// Acceptance 6, HTTP: whatever is sent to either port is refused with a 4xx and a stable code, or
// cut off; the broker goes on serving and keeps nothing. One broker process of its own.
// JINDOU_TEST_BODIES raises the count of damaged bodies per call.

import { once } from "node:events";
import { Agent, type IncomingMessage, request } from "node:http";
import { json } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import t from "tap";
import { EDGE_ERRORS } from "../../src/api/errors.ts";
import { ERRORS } from "../../src/broker/errors.ts";
import { type ApiResponse, spawnBroker, textPayload } from "../support/broker.ts";
import { measureStalls } from "../support/stalls.ts";
import { volume } from "../support/volume.ts";
import { MEASURED, settledMib } from "./child-memory.ts";
import {
  damagedBody,
  FORBIDDEN_IDS,
  ID_FIELDS,
  polluting,
  RIGHT_BODIES,
  wrongBodies,
} from "./hostile-bodies.ts";
import {
  BROKEN_QUERIES,
  BROKEN_REQUESTS,
  BROKEN_STREAM_PATHS,
  randomRequest,
} from "./hostile-requests.ts";
import { RawSocket } from "./raw-socket.ts";

const DAMAGED_PER_CALL = volume(400, "JINDOU_TEST_BODIES");
const RANDOM_REQUESTS = 500;
const MAX_BODY_BYTES = 1_048_576;
const AT_ONCE = 8;
/** Two of the transport's time-outs, and then some. */
const SLOW_MS = 60_000;

/**
 * What the process may own more at the end than after the first of the hostile bodies, in MiB. A
 * kept megabyte of the big ones would show.
 */
const MEMORY_TOLERANCE_MIB = 8;

const CODES: ReadonlySet<string> = new Set([...Object.keys(ERRORS), ...Object.keys(EDGE_ERRORS)]);

const broker = await spawnBroker(t, MEASURED);
const { pid } = broker.process;
const PATHS = Object.keys(RIGHT_BODIES);
await broker.call("/channel", RIGHT_BODIES["/channel"]);
/** A connection is closed before the broker does it, which a call could cross. */
const agent = new Agent({ keepAlive: true, timeout: 4000 });
const stalls = measureStalls(t);
const dawdling = dawdle();
let warmMib = Number.NaN;

t.test("every call with a body is attacked here", async (t) => {
  const { body } = await broker.call("/openapi.json");
  const posts = Object.entries(body.paths as Record<string, object>)
    .filter(([, methods]) => "post" in methods)
    .map(([path]) => path);
  const readingNone = ["/manager/logout"];
  t.same(posts.sort(), [...PATHS, ...readingNone].sort());
});

t.test("bodies that are wrong in any one way are refused", async (t) => {
  for (const path of PATHS) {
    const problems = await attack(path, wrongBodies(path), isRefusal);
    t.same(problems, [], path);
  }
  warmMib = await settledMib(pid);
});

t.test("an id that nobody may have is refused wherever one goes", async (t) => {
  for (const [path, bodyWith] of ID_FIELDS) {
    const bodies = FORBIDDEN_IDS.map((id) => JSON.stringify(bodyWith(id)));
    const isBadId = (reply: Reply) => isRefusal(reply) && reply.code === "bad_id";
    t.same(await attack(path, bodies, isBadId), [], path);
  }
});

t.test("right bodies with bytes changed are served or refused", async (t) => {
  for (const path of PATHS) {
    const bodies = seeds(DAMAGED_PER_CALL).map((seed) => damagedBody(path, seed));
    const isSound = (reply: Reply) => reply.status === 200 || isRefusal(reply);
    t.same(await attack(path, bodies, isSound), [], path);
  }
});

t.test("huge bodies are refused, whether they say their length or not", async (t) => {
  for (const path of PATHS) {
    const full = [
      `[${'"",'.repeat(300_000)}""]`,
      `{"uid":"${"x".repeat(1_000_000)}"}`,
      new Uint8Array(MAX_BODY_BYTES),
    ];
    t.same(await attack(path, full, isRefusal), [], path);
    const request = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n`;
    const length = `Content-Length: ${MAX_BODY_BYTES + 1}\r\n\r\n`;
    t.equal(await statusOf(broker.apiPort, request + length), 413, path);
    const chunk = `10000\r\n${"x".repeat(0x10000)}\r\n`;
    const chunks = `Transfer-Encoding: chunked\r\n\r\n${chunk.repeat(17)}`;
    const status = await statusOf(broker.apiPort, request + chunks);
    t.ok(status === 413 || status === undefined, `${path}: ${status}`);
  }
});

t.test("keys that reach for prototypes change nothing", async (t) => {
  const send = { from_uid: "a", channel_id: "p", channel_type: 2 };
  const channel = { channel_id: "p", channel_type: 2 };
  const made = polluting({ ...channel, subscribers: ["a"] });
  const payload = textPayload("hi");
  t.equal((await post("/channel", made)).status, 200);
  t.equal((await post("/channel/info", polluting(channel))).status, 200);
  const added = polluting({ ...channel, subscribers: ["b"] });
  t.equal((await post("/channel/subscriber_add", added)).status, 200);
  const header = `"header":${polluting({ red_dot: 1 })}`;
  const body = polluting({ ...send, payload }).replace(/}$/, `,${header}}`);
  for (const message_seq of [1, 2])
    t.match(await post("/message/send", body), {
      status: 200,
      body: { message_seq },
    });
});

t.test("queries that are wrong, unknown paths and wrong methods", async (t) => {
  for (const query of BROKEN_QUERIES) {
    const reply = await call(`/channel/messages?${query}`, { method: "GET" });
    t.ok(isRefusal(reply), `${query}: ${reply.status} ${reply.code}`);
  }
  for (const path of BROKEN_STREAM_PATHS)
    for (const accept of ["*/*", "text/event-stream"]) {
      const reply = await call(path, { method: "GET", headers: { accept } });
      t.ok(isRefusal(reply), `${path}: ${reply.status} ${reply.code}`);
    }
  for (const path of ["/", "/%00", "//", "/__proto__", "/user/token/", "/../etc"])
    t.equal((await post(path, "{}")).code, "not_found", path);
  for (const path of PATHS)
    for (const method of ["GET", "PUT", "DELETE", "PATCH"])
      t.equal((await call(path, { method })).code, "method_not_allowed");
});

t.test("what is no HTTP request is refused or cut off, on either port", async (t) => {
  for (const port of [broker.apiPort, broker.clientPort]) {
    for (const [name, bytes] of Object.entries(BROKEN_REQUESTS)) {
      const status = await statusOf(port, bytes);
      t.ok(isCutOrRefused(status), `${name}: ${status}`);
    }
    const odd = new Set<number | undefined>();
    await inParallel(seeds(RANDOM_REQUESTS), async (seed) => {
      const status = await statusOf(port, randomRequest(seed));
      if (status !== 200 && !isCutOrRefused(status)) odd.add(status);
    });
    t.same([...odd], []);
  }
});

t.test("the API port opens no WebSocket", async (t) => {
  await t.rejects(new RawSocket(broker.apiPort).upgraded(), /HTTP\/1.1 4\d\d/);
});

t.test("who sends too slowly is cut off", async (t) => {
  const lastMs = await dawdling;
  const mostMs = SLOW_MS + 10 * stalls.totalMs();
  t.ok(lastMs < mostMs, `the last was gone after ${lastMs.toFixed(0)} ms`);
});

t.test("a normal call is served, and the memory is flat", async (t) => {
  t.equal((await post("/user/onlinestatus", '["a"]')).status, 200);
  const limitMib = warmMib + MEMORY_TOLERANCE_MIB;
  const nowMib = await settledMib(pid, limitMib);
  t.comment(`${warmMib.toFixed(1)} MiB warm, ${nowMib.toFixed(1)} MiB now`);
  t.ok(nowMib <= limitMib);
  t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
  t.equal(await broker.terminate(), 0);
});

interface Reply {
  readonly status: number;
  readonly code: string | undefined;
  readonly body: unknown;
}

interface Call {
  readonly method: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array;
}

/** Not with `fetch`, which takes three times the processor time. */
async function call(path: string, { body: sent, ...options }: Call): Promise<Reply> {
  const url = new URL(`http://127.0.0.1:${broker.apiPort}${path}`);
  const calling = request(url, { ...options, agent });
  calling.end(sent);
  const [response]: IncomingMessage[] = await once(calling, "response");
  if (response === undefined) throw new Error("there is no response");
  const body = (await json(response)) as ApiResponse["body"];
  return { status: response.statusCode ?? 0, code: body.code, body };
}

function post(path: string, body: string | Uint8Array): Promise<Reply> {
  const headers = { "content-type": "application/json" };
  return call(path, { method: "POST", headers, body });
}

function isRefusal({ status, code = "" }: Reply): boolean {
  return status >= 400 && status < 500 && CODES.has(code);
}

/** 505: what begins like no request is taken for one of another version. */
function isCutOrRefused(status: number | undefined): boolean {
  if (status === undefined || status === 505) return true;
  return status >= 400 && status < 500;
}

/**
 * Posts every body; resolves with the replies that are not `sound`, and the bodies they were to.
 */
async function attack(
  path: string,
  bodies: Iterable<string | Uint8Array>,
  isSound: (reply: Reply) => boolean,
): Promise<readonly string[]> {
  const problems: string[] = [];
  await inParallel(bodies, async (body) => {
    const reply = await post(path, body);
    if (isSound(reply)) return;
    const text = Buffer.from(body).toString("latin1", 0, 100);
    problems.push(`${reply.status} ${reply.code} to ${text}`);
  });
  return problems;
}

async function inParallel<T>(items: Iterable<T>, work: (item: T) => Promise<void>): Promise<void> {
  const queue = items[Symbol.iterator]();
  const lane = async () => {
    for (let next = queue.next(); !next.done; next = queue.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, lane));
}

/**
 * Sends bytes on a connection of their own and stops; the status of the first answer, or undefined
 * when there was none.
 */
async function statusOf(port: number, bytes: Uint8Array | string): Promise<number | undefined> {
  const socket = await new RawSocket(port).connected();
  socket.write(bytes);
  socket.endWriting();
  await socket.cut();
  const status = /^HTTP\/1\.1 (\d{3}) /.exec(socket.received.toString("latin1"));
  return status === null ? undefined : Number(status[1]);
}

/**
 * Clients that send a head or a body a byte at a time, or nothing; resolves with the milliseconds
 * after which all had been cut off.
 */
async function dawdle(): Promise<number> {
  const startMs = performance.now();
  const post = "POST /user/onlinestatus HTTP/1.1\r\nHost: x\r\n";
  const starts = [
    "",
    "G",
    post,
    `${post}Content-Length: 10000\r\n\r\n[`,
    `${post}Transfer-Encoding: chunked\r\n\r\n`,
  ];
  const sockets = starts.flatMap((start) =>
    Array.from({ length: 20 }, () => {
      const socket = new RawSocket(broker.apiPort);
      socket.write(start);
      return { socket, drips: start !== "" };
    }),
  );
  let isOver = false;
  const ends = Promise.all(sockets.map(({ socket }) => socket.cut()));
  void ends.finally(() => {
    isOver = true;
  });
  while (!isOver) {
    for (const { socket, drips } of sockets) if (drips) socket.write("1");
    await delay(250);
  }
  await ends;
  return performance.now() - startMs;
}

function seeds(count: number): readonly number[] {
  return Array.from({ length: count }, (_, i) => i + 1);
}
