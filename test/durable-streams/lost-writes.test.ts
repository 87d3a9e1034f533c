// Readers of streams whose last writes Redis has lost: over HTTP, and with the SDK.

import { once } from "node:events";
import { createServer, request as forward } from "node:http";
import type { AddressInfo } from "node:net";
import t, { type Test } from "tap";
import { connect, type StreamRecord } from "../../src/client/index.ts";
import { startBroker } from "../support/broker.ts";
import { type RedisServer, startRedis } from "../support/redis.ts";
import { signedPath } from "../support/signed-path.ts";
import { type Call, callAt } from "./http-client.ts";

const JSON_TYPE = { "content-type": "application/json" };
/** Number of requests above which a reader cannot have paused between them. */
const MAX_REQUESTS = 50;

async function start(t: Test) {
  const redis = await startRedis(t, ["--appendonly", "no"]);
  const broker = await startBroker(t, { JINDOU_REDIS_URL: redis.url });
  const write = (method: string, path: string, body: string) =>
    callAt(broker.apiPort, path, { method, body, headers: JSON_TYPE });
  return {
    ...{ redis, broker },
    put: (path: string, body: string) => write("PUT", path, body),
    post: (path: string, body: string) => write("POST", path, body),
    read: (path: string, options?: Call) => callAt(broker.apiPort, path, options),
    /** Restarts Redis without the writes since its last snapshot, and waits for the broker. */
    async loseWrites(path: string): Promise<void> {
      await redis.stop("SIGKILL");
      await redis.restart();
      while ((await callAt(broker.apiPort, path)).status !== 200)
        await new Promise((resolve) => setTimeout(resolve, 20));
    },
  };
}

const save = ({ client }: RedisServer) => client().save();

t.test("every read from the offset of a write that Redis lost is answered with 410", async (t) => {
  const { redis, broker, put, post, read, loseWrites } = await start(t);
  // The next record of each stream ends before, at or after the lost offset.
  const records = { none: undefined, shorter: "1", equal: '"anew"', longer: '"a longer record"' };
  const pathOf = (name: string) => `/v1/stream/lost/${name}`;
  const lost = new Map<string, string>();
  const kept = new Map<string, string>();
  const offsetOf = async (path: string) =>
    (await read(path, { method: "HEAD" })).headers["stream-next-offset"] ?? "";
  for (const name of Object.keys(records)) {
    t.equal((await put(pathOf(name), '["kept"]')).status, 201);
    kept.set(name, await offsetOf(pathOf(name)));
  }
  await save(redis);
  for (const name of Object.keys(records)) {
    t.equal((await post(pathOf(name), '"gone"')).status, 204);
    lost.set(name, await offsetOf(pathOf(name)));
  }
  await loseWrites(pathOf("none"));
  for (const [name, record] of Object.entries(records)) {
    const path = pathOf(name);
    const url = await signedPath(broker, path, "read");
    if (record !== undefined) t.equal((await post(path, record)).status, 204);
    for (const live of ["", "&live=long-poll", "&live=sse"]) {
      const query = `offset=${lost.get(name)}${live}`;
      for (const reply of [
        await read(`${path}?${query}`),
        await callAt(broker.clientPort, `${url}&${query}`),
      ])
        t.match(reply.json, { status: 410, code: "offset_lost" }, `${name} ${query}`);
    }
    const rest = await read(`${path}?offset=${kept.get(name)}`);
    t.equal(rest.text, `[${record ?? ""}]`, "the offset before the lost write is valid");
  }
});

/** Starts a proxy in front of the broker that counts the requests for `path`. */
async function startCounter(t: Test, port: number, path: string) {
  let requests = 0;
  const proxy = createServer(({ method, url = "", headers }, response) => {
    if (url.startsWith(path)) requests += 1;
    const sent = forward({ host: "127.0.0.1", port, path: url, method, headers }, (reply) => {
      response.writeHead(reply.statusCode ?? 502, reply.headers);
      reply.pipe(response);
    });
    sent.on("error", () => response.destroy());
    response.on("close", () => sent.destroy());
    sent.end();
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  t.teardown(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  const { port: own } = proxy.address() as AddressInfo; // it listens on a TCP port
  return { port: own, requests: () => requests };
}

t.test(
  "a live reader whose last record Redis has lost begins again and receives the new history once",
  async (t) => {
    const { redis, broker, put, post, loseWrites } = await start(t);
    const path = "/v1/stream/followed";
    t.equal((await put(path, '["kept"]')).status, 201);
    await save(redis);
    const counter = await startCounter(t, broker.clientPort, path);
    const reconnect = { minMs: 20, maxMs: 500 };
    const url = `ws://127.0.0.1:${counter.port}`;
    const client = connect({ url, uid: "zoë", token: "t", reconnect });
    t.teardown(() => client.close());
    client.on("error", () => {});
    const received: StreamRecord<string>[] = [];
    const records = client.stream<string>(await signedPath(broker, path, "read")).records();
    const reading = (async () => {
      for await (const record of records) received.push(record);
    })();
    const until = async (isDone: () => boolean) => {
      while (!isDone() && counter.requests() < MAX_REQUESTS)
        await new Promise((resolve) => setTimeout(resolve, 20));
    };
    await until(() => received.length === 1);
    t.equal((await post(path, '"gone"')).status, 204);
    await until(() => received.length === 2);
    await loseWrites(path);
    t.equal((await post(path, '"anew"')).status, 204);
    await until(() => received.length === 4);
    t.equal((await post(path, '"more"')).status, 204);
    await until(() => received.length === 5);
    await records.return?.();
    await reading;
    t.same(
      received.map(({ data, restarted }) => [data, restarted]),
      [
        ...[
          ["kept", false],
          ["gone", false],
        ],
        ...[
          ["kept", true],
          ["anew", false],
          ["more", false],
        ],
      ],
    );
    t.ok(counter.requests() < MAX_REQUESTS, `the reader made ${counter.requests()} requests`);
  },
);
