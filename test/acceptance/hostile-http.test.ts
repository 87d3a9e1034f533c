// Hostile HTTP requests. A request to either port that is not valid is refused with 4xx and a code
// of the error table, or its connection is closed. The broker keeps serving and its memory does not
// grow. Uses its own broker process. JINDOU_TEST_BODIES sets the number of damaged bodies per call.

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
import { MEASURED_SETTINGS, settledMib } from "./child-memory.ts";
import {
  damagedBody,
  FORBIDDEN_IDS,
  ID_FIELDS,
  mayBeServed,
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
/** Upper bound for closing slow clients: more than twice the timeout of the transport. */
const SLOW_MS = 60_000;

/**
 * Allowed growth of the broker's memory, in MiB, from the first hostile bodies to the end of the
 * test. One of the large bodies would need more if the broker kept it.
 */
const MEMORY_TOLERANCE_MIB = 8;

const CODES: ReadonlySet<string> = new Set([...Object.keys(ERRORS), ...Object.keys(EDGE_ERRORS)]);

const broker = await spawnBroker(t, MEASURED_SETTINGS);
const { pid } = broker.process;
const PATHS = Object.keys(RIGHT_BODIES);
await broker.call("/channel", RIGHT_BODIES["/channel"]);
/**
 * The client closes idle connections before the broker does, so that no call meets a closing
 * connection.
 */
const agent = new Agent({ keepAlive: true, timeout: 4000 });
const stalls = measureStalls(t);
const slowClients = runSlowClients();
let warmMib = Number.NaN;

t.test("the attacks in this file cover every POST call that has a JSON body", async (t) => {
  const { body } = await broker.call("/openapi.json");
  const posts = Object.entries(body.paths as Record<string, object>)
    .filter(([, methods]) => "post" in methods)
    .map(([path]) => path);
  const withoutJson = ["/v1/stream/{path}", "/v1/sign/rotate", "/manager/logout"];
  const ofWebhooks = ["/webhooks/{id}/test", "/webhooks/{id}/failures/{event_id}/retry"];
  const withoutBody = ["/admin/import/open", "/admin/import/close", ...withoutJson, ...ofWebhooks];
  const withLines = ["/admin/import"]; // see test/api/hostile.test.ts
  t.same(posts.sort(), [...PATHS, ...withoutBody, ...withLines].sort());
});

t.test("a malformed or mistyped body is refused with 4xx by every call", async (t) => {
  for (const path of PATHS) {
    const problems = await attack(
      path,
      wrongBodies(path),
      (reply, body) => isRefusal(reply) || (reply.status === 200 && mayBeServed(body)),
    );
    t.same(problems, [], `${path} refuses every wrong body`);
  }
  warmMib = await settledMib(pid);
});

t.test("an invalid id is refused with bad_id in every field that contains an id", async (t) => {
  for (const [path, bodyWith] of ID_FIELDS) {
    const bodies = FORBIDDEN_IDS.map((id) => JSON.stringify(bodyWith(id)));
    const isBadId = (reply: Reply) => isRefusal(reply) && reply.code === "bad_id";
    t.same(await attack(path, bodies, isBadId), [], `${path} refuses every invalid id`);
  }
});

t.test("a body with randomly changed bytes is either accepted or refused with 4xx", async (t) => {
  for (const path of PATHS) {
    const bodies = seeds(DAMAGED_PER_CALL).map((seed) => damagedBody(path, seed));
    const isAllowed = (reply: Reply) => reply.status === 200 || isRefusal(reply);
    t.same(
      await attack(path, bodies, isAllowed),
      [],
      `${path} serves or refuses every damaged body`,
    );
  }
});

t.test("a body over the size limit is refused, with or without Content-Length", async (t) => {
  for (const path of PATHS) {
    const largest = [
      `[${'"",'.repeat(300_000)}""]`,
      `{"uid":"${"x".repeat(1_000_000)}"}`,
      new Uint8Array(MAX_BODY_BYTES),
    ];
    t.same(await attack(path, largest, isRefusal), [], `${path} refuses the largest bodies`);
    const request = `POST ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n`;
    const length = `Content-Length: ${MAX_BODY_BYTES + 1}\r\n\r\n`;
    t.equal(
      await statusOf(broker.apiPort, request + length),
      413,
      `${path} refuses a Content-Length over the limit`,
    );
    const chunk = `10000\r\n${"x".repeat(0x10000)}\r\n`;
    const chunks = `Transfer-Encoding: chunked\r\n\r\n${chunk.repeat(17)}`;
    const status = await statusOf(broker.apiPort, request + chunks);
    t.ok(
      status === 413 || status === undefined,
      `${path} refuses chunks over the limit: ${status}`,
    );
  }
});

t.test("keys such as __proto__ in a body have no effect", async (t) => {
  const send = { from_uid: "a", channel_id: "p", channel_type: 2 };
  const channel = { channel_id: "p", channel_type: 2 };
  const channelBody = polluting({ ...channel, subscribers: ["a"] });
  const payload = textPayload("hi");
  t.equal((await post("/channel", channelBody)).status, 200);
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

t.test("invalid queries, unknown paths and wrong methods are refused with 4xx", async (t) => {
  for (const query of BROKEN_QUERIES) {
    const reply = await call(`/channel/messages?${query}`, { method: "GET" });
    t.ok(isRefusal(reply), `the query ${query} is refused with ${reply.status} ${reply.code}`);
  }
  for (const path of BROKEN_STREAM_PATHS)
    for (const accept of ["*/*", "text/event-stream"]) {
      const reply = await call(path, { method: "GET", headers: { accept } });
      t.ok(isRefusal(reply), `the path ${path} is refused with ${reply.status} ${reply.code}`);
    }
  for (const path of ["/%00", "//", "/__proto__", "/user/token/", "/../etc"])
    t.equal((await post(path, "{}")).code, "not_found", `${path} is not found`);
  for (const path of PATHS)
    for (const method of ["GET", "PUT", "DELETE", "PATCH"]) {
      if (method === "GET" && path === "/webhooks") continue; // lists the webhooks
      t.equal(
        (await call(path, { method })).code,
        "method_not_allowed",
        `the method ${method} is refused for ${path}`,
      );
    }
});

t.test(
  "a malformed HTTP request is refused or ends its connection, on the API port and on the client port",
  async (t) => {
    for (const port of [broker.apiPort, broker.clientPort]) {
      for (const [name, bytes] of Object.entries(BROKEN_REQUESTS)) {
        const status = await statusOf(port, bytes);
        t.ok(
          isClosedOrRefused(status),
          `a request with ${name} is refused or its connection closed, not answered with ${status}`,
        );
      }
      const unexpected = new Set<number | undefined>();
      await inParallel(seeds(RANDOM_REQUESTS), async (seed) => {
        const status = await statusOf(port, randomRequest(seed));
        if (status !== 200 && !isClosedOrRefused(status)) unexpected.add(status);
      });
      t.same([...unexpected], [], "damaged requests are served, refused or end the connection");
    }
  },
);

t.test("the API port refuses WebSocket upgrades", async (t) => {
  await t.rejects(new RawSocket(broker.apiPort).upgraded(), /HTTP\/1.1 4\d\d/);
});

t.test("a client that sends a request too slowly is disconnected", async (t) => {
  const lastMs = await slowClients;
  const maxMs = SLOW_MS + 10 * stalls.totalMs();
  t.ok(lastMs < maxMs, `the last slow client was disconnected after ${lastMs.toFixed(0)} ms`);
});

t.test(
  "the broker serves normal calls after the attacks in this file, and its memory has not grown",
  async (t) => {
    t.equal((await post("/user/onlinestatus", '["a"]')).status, 200);
    const limitMib = warmMib + MEMORY_TOLERANCE_MIB;
    const nowMib = await settledMib(pid, limitMib);
    t.comment(`${warmMib.toFixed(1)} MiB after the warm-up, ${nowMib.toFixed(1)} MiB now`);
    t.ok(nowMib <= limitMib, "the memory has not grown");
    t.notMatch(broker.output(), /"level":"(error|fatal)"/, "no error was logged");
    t.equal(await broker.terminate(), 0);
  },
);

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

/** Calls the broker with `node:http`, because `fetch` takes three times the processor time. */
async function call(path: string, { body: requestBody, ...options }: Call): Promise<Reply> {
  const url = new URL(`http://127.0.0.1:${broker.apiPort}${path}`);
  const calling = request(url, { ...options, agent });
  calling.end(requestBody);
  const [response]: IncomingMessage[] = await once(calling, "response");
  if (response === undefined) throw new Error("the broker sent no response");
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

/**
 * Returns true if the broker refused the request or closed the connection. 505 is the parser's
 * response to bytes that do not begin like a request.
 */
function isClosedOrRefused(status: number | undefined): boolean {
  if (status === undefined || status === 505) return true;
  return status >= 400 && status < 500;
}

/**
 * Posts every body. Returns the responses that `isAllowed` rejects, with the beginning of the body.
 */
async function attack(
  path: string,
  bodies: Iterable<string | Uint8Array>,
  isAllowed: (reply: Reply, body: string | Uint8Array) => boolean,
): Promise<readonly string[]> {
  const problems: string[] = [];
  await inParallel(bodies, async (body) => {
    const reply = await post(path, body);
    if (isAllowed(reply, body)) return;
    const text = Buffer.from(body).toString("latin1", 0, 100);
    problems.push(`${reply.status} ${reply.code} to ${text}`);
  });
  return problems;
}

async function inParallel<T>(items: Iterable<T>, work: (item: T) => Promise<void>): Promise<void> {
  const queue = items[Symbol.iterator]();
  const worker = async () => {
    for (let next = queue.next(); !next.done; next = queue.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: AT_ONCE }, worker));
}

/**
 * Sends the bytes on a new connection and then closes the sending side. Returns the status of the
 * first response, or `undefined` if there was none.
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
 * Runs clients that send a head or a body one byte at a time, or nothing. Returns the time in
 * milliseconds after which all were disconnected.
 */
async function runSlowClients(): Promise<number> {
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
