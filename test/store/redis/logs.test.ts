// Logs on Redis beyond the contract: several nodes, lost writes, lost libraries, and forks whose
// creation or removal was interrupted.

import { createServer, type Socket, connect as tcp } from "node:net";
import t, { type Test } from "tap";
import { LOG_START, logBucket } from "../../../src/broker/log-frame.ts";
import { LIBRARY } from "../../../src/store/redis/operations.ts";
import { logPlace } from "../../../src/store/redis/steps/log-head.ts";
import {
  appended,
  appendOf,
  appendsOf,
  created,
  draftOf,
  forkOf,
  free,
  producerOf,
  read,
} from "../../contract/log-fixture.ts";
import { codeOf } from "../../contract/store-fixture.ts";
import { startRedis } from "../../support/redis.ts";
import { volume } from "../../support/volume.ts";
import { logKeys, newPrefix, startLogNode } from "./log-driver.ts";

const redis = await startRedis(t);

t.test("an append through one node reaches the readers of another node", async (t) => {
  const prefix = newPrefix();
  const a = await startLogNode(t, redis.url, { prefix });
  const b = await startLogNode(t, redis.url, { prefix });
  const { tail, incarnation } = await created(
    a.store.createLog(free("a/b"), draftOf({ records: [Buffer.from("first")] })),
  );
  const { tail: next } = await appended(a.store.appendLog(free("a/b"), appendOf(["second"])));
  await a.store.appendLog(free("a/b"), appendOf(["x".repeat(5000)], { close: "closed" }));
  await b.untilPublished();
  const [small, large] = b.events;
  t.match(small, { kind: "log", nameText: "/a/b", incarnation, change: "appended" });
  t.same([small?.from, small?.tail, small?.closed], [tail, next, undefined]);
  const { pieces } = await read(b.store, free("a/b"), tail, 1);
  t.same(small?.frame, pieces[0], "the event contains the frame that a read returns");
  t.same([large?.from, large?.closed, large?.frame], [next, "closed", undefined]);
  t.same(await appendsOf(b.store, free("a/b")), [["first"], ["second"], ["x".repeat(5000)]]);
  await b.store.deleteLog(free("a/b"));
  await a.untilPublished();
  t.match(a.events.at(-1), { change: "deleted", nameText: "/a/b" });
});

t.test("two nodes that append to one log read equal bytes from it", async (t) => {
  const prefix = newPrefix();
  const nodes = [
    await startLogNode(t, redis.url, { prefix }),
    await startLogNode(t, redis.url, { prefix }),
  ] as const;
  await nodes[0].store.createLog(free("both"), draftOf());
  const appends = Array.from({ length: 60 }, (_, at) =>
    nodes[at % 2 === 0 ? 0 : 1].store.appendLog(free("both"), appendOf([`${at}`, "."])),
  );
  await Promise.all(appends);
  const [first, second] = await Promise.all(nodes.map(({ store }) => read(store, free("both"))));
  t.same(first?.pieces, second?.pieces);
  const texts = (await appendsOf(nodes[0].store, free("both"))).map(([text]) => Number(text));
  t.same(
    [...texts].sort((a, b) => a - b),
    Array.from({ length: 60 }, (_, at) => at),
  );
  for (const parity of [0, 1]) {
    const own = texts.filter((text) => text % 2 === parity);
    t.same(
      own,
      [...own].sort((a, b) => a - b),
      "the appends of a node keep their order",
    );
  }
});

t.test(
  "a read from the offset of a write that Redis lost returns the verdict `lost`, whatever is written later",
  async (t) => {
    const server = await startRedis(t, ["--appendonly", "no"]);
    const prefix = newPrefix();
    const before = await startLogNode(t, server.url, { prefix });
    await created(before.store.createLog(free("l"), draftOf({ records: [Buffer.from("kept")] })));
    await server.client().save();
    const { tail: kept } = await read(before.store, free("l")).then(({ head }) => head);
    const { tail: lost } = await appended(before.store.appendLog(free("l"), appendOf(["gone"])));
    await before.close();
    await server.stop("SIGKILL");
    await server.restart();
    const { store } = await startLogNode(t, server.url, { prefix });
    t.match(await store.readLog(free("l"), { from: lost, maxBytes: 100 }), { verdict: "lost" });
    const { tail: other } = await appended(store.appendLog(free("l"), appendOf(["anew"])));
    t.equal(other.position, lost.position, "the other record has the same length");
    t.match(await store.readLog(free("l"), { from: lost, maxBytes: 100 }), { verdict: "lost" });
    await store.appendLog(free("l"), appendOf(["more"]));
    t.match(await store.readLog(free("l"), { from: lost, maxBytes: 100 }), { verdict: "lost" });
    t.same(await appendsOf(store, free("l"), kept), [["anew"], ["more"]]);
  },
);

t.test("a function library that Redis lost is loaded again, and no call fails", async (t) => {
  const { store } = await startLogNode(t, redis.url);
  await store.createLog(free("f"), draftOf());
  await redis.client().call("FUNCTION", "FLUSH");
  await Promise.all(["a", "b", "c"].map((text) => store.appendLog(free("f"), appendOf([text]))));
  await redis.client().call("FUNCTION", "DELETE", LIBRARY.name);
  t.same(await appendsOf(store, free("f")), [["a"], ["b"], ["c"]]);
});

t.test("function libraries of two versions can be loaded at the same time", async (t) => {
  const { store } = await startLogNode(t, redis.url);
  await store.createLog(free("v"), draftOf());
  const other = LIBRARY.text.replaceAll(LIBRARY.name, "jindou_00000000");
  await redis.client().call("FUNCTION", "LOAD", other);
  await appended(store.appendLog(free("v"), appendOf(["a"])));
  const libraries = (await redis.client().call("FUNCTION", "LIST")) as readonly string[][];
  const names = libraries.map(([, name]) => name).sort();
  t.same(names, ["jindou_00000000", LIBRARY.name].sort());
});

t.test("a promoted replica receives a missing function library with the first call", async (t) => {
  const primary = await startRedis(t, ["--repl-diskless-sync-delay", "0"]);
  const replica = await startRedis(t);
  const proxy = await startSwitch(t, primary.port);
  const prefix = newPrefix();
  const { store, link } = await startLogNode(t, proxy.url, { prefix });
  await replica.client().replicaof("127.0.0.1", primary.port);
  while (!(await replica.client().info("replication")).includes("master_link_status:up"))
    await new Promise((resolve) => setTimeout(resolve, 10));
  while ((await replica.client().exists(`${prefix}:{all}:format`)) === 0)
    await new Promise((resolve) => setTimeout(resolve, 10));
  await replica.client().replicaof("NO", "ONE");
  await replica.client().call("FUNCTION", "FLUSH"); // as if the replica had not been in sync
  await store.createLog(free("old"), draftOf());
  const lost = new Promise<void>((resolve) => link.onChange((isUp) => isUp || resolve()));
  proxy.switchTo(replica.port);
  await lost;
  while (!link.isUp) await new Promise((resolve) => setTimeout(resolve, 10));
  await created(store.createLog(free("new"), draftOf()));
  await appended(store.appendLog(free("new"), appendOf(["a"], producerOf(0))));
  t.same(await store.logHead(free("old")), "missing");
});

t.test("appends fail only while a key of their log has the wrong type", async (t) => {
  const { store, link } = await startLogNode(t, redis.url);
  await store.createLog(free("e"), draftOf());
  const { prefix } = link.keys;
  const [frames] = (await redis.client().keys(`${prefix}:*logHead:/e`)).map((key) =>
    key.replace("logHead", "logFrames"),
  );
  await redis.client().sadd(frames ?? "", "x");
  const failure = await store.appendLog(free("e"), appendOf(["a"])).catch((error) => error);
  t.match(failure, { code: "internal" });
  t.match(String(failure.cause?.message), /WRONGTYPE/);
  await redis.client().del(frames ?? "");
  await appended(store.appendLog(free("e"), appendOf(["b"])));
  t.same(await appendsOf(store, free("e")), [["b"]]);
});

t.test("an append that fails does not affect appends to other logs in the same call", async (t) => {
  const { store, link } = await startLogNode(t, redis.url);
  for (const path of ["x", "y"]) await store.createLog(free(path), draftOf());
  const { prefix } = link.keys;
  const [head = ""] = await redis.client().keys(`${prefix}:*logHead:/x`);
  await redis.client().del(head);
  await redis.client().set(head, "not a hash");
  const results = await Promise.allSettled(
    ["x", "y", "x", "y"].map((path) => store.appendLog(free(path), appendOf(["a"]))),
  );
  t.same(
    results.map(({ status }) => status),
    ["rejected", "fulfilled", "rejected", "fulfilled"],
  );
  t.same(await appendsOf(store, free("y")), [["a"], ["a"]]);
});

t.test("a reference to a fork that was never created is removed after a minute", async (t) => {
  const { store, link, time } = await startLogNode(t, redis.url);
  const source = free("source");
  await store.createLog(source, draftOf());
  // The reference of a fork that exists stays.
  await created(store.createLog(free("fork"), draftOf({ origin: forkOf("source") })));
  const [forks = ""] = await redis.client().keys(`${link.keys.prefix}:*logForks:/source`);
  const [bucket = ""] = forks.split("logForks");
  const reference = JSON.stringify(["/source", "/never", "0123456789abcdef"]);
  await redis.client().sadd(forks, reference);
  await redis.client().zadd(`${bucket}logReferences`, time.nowMs, reference);
  await store.sweep();
  t.equal(await redis.client().scard(forks), 2, "a young reference is kept");
  time.nowMs += 61_000;
  await store.sweep();
  t.equal(await redis.client().scard(forks), 1);
  await store.deleteLog(source);
  t.equal(await store.deleteLog(free("fork")), "done");
  t.same(await logKeys(link), []);
});

t.test("a sweep releases a fork's source if a node died while it removed the fork", async (t) => {
  const { store, link } = await startLogNode(t, redis.url);
  await store.createLog(free("s"), draftOf({ records: [Buffer.from("a")] }));
  await created(store.createLog(free("t"), draftOf({ origin: forkOf("s") })));
  const [forks = ""] = await redis.client().keys(`${link.keys.prefix}:*logForks:/s`);
  const [reference = ""] = await redis.client().smembers(forks);
  const [head = ""] = await redis.client().keys(`${link.keys.prefix}:*logHead:/t`);
  await redis.client().del(head);
  await redis.client().sadd(head.replace("logHead:/t", "logReleases"), reference);
  t.equal(await store.deleteLog(free("s")), "done");
  t.equal(await store.logHead(free("s")), "deleted");
  await store.sweep();
  t.same(await logKeys(link), []);
});

t.test("a log leaves no key after it was deleted or has expired", async (t) => {
  const { store, link, time } = await startLogNode(t, redis.url);
  const fill = (path: string) =>
    store.appendLog(free(path), appendOf(["a"], { ...producerOf(0), order: "1" }));
  await store.createLog(free("deleted"), draftOf());
  await store.createLog(free("expired"), draftOf({ ttlS: 10 }));
  await store.createLog(free("dated"), draftOf({ expiresAtMs: time.nowMs + 5000 }));
  for (const path of ["deleted", "expired", "dated"]) await fill(path);
  for (const [path, source] of [
    ["child", "deleted"],
    ["grandchild", "child"],
    ["heir", "expired"],
  ] as const)
    await created(
      store.createLog(
        free(path),
        draftOf({ origin: forkOf(source), expiresAtMs: time.nowMs + 1e9 }),
      ),
    );
  await store.deleteLog(free("deleted"));
  await store.deleteLog(free("child"));
  time.nowMs += 60_000;
  await store.sweep();
  t.same(await appendsOf(store, free("grandchild")), [["a"]], "a fork keeps its frames");
  t.same(await appendsOf(store, free("heir")), [["a"]]);
  for (const path of ["grandchild", "heir"]) t.equal(await store.deleteLog(free(path)), "done");
  await store.sweep();
  t.same(await logKeys(link), []);
});

t.test(
  "65 logs that cannot be swept do not prevent the sweep of another log in the same bucket, but 100 do",
  async (t) => {
    const { store, link, time } = await startLogNode(t, redis.url);
    const bucket = logBucket(free("bad0"));
    const pathsOf = (name: string, count: number) => {
      const paths: string[] = [];
      for (let n = 0; paths.length < count; n++)
        if (logBucket(free(`${name}${n}`)) === bucket) paths.push(`${name}${n}`);
      return paths;
    };
    const expireBehind = async (bad: readonly string[], last: string) => {
      for (const [at, path] of [...bad, last].entries())
        await store.createLog(free(path), draftOf({ expiresAtMs: time.nowMs + 5000 + at }));
      for (const path of bad) {
        const { key } = logPlace(link.keys, free(path));
        await link.write("del", key);
        await link.write("set", key, "a wrong type");
      }
      time.nowMs += 60_000;
      await t.rejects(store.sweep());
      const { key } = logPlace(link.keys, free(last));
      return (await redis.client().exists(key)) === 0;
    };
    const [first = "", second = ""] = pathsOf("last", 2);
    const bad = pathsOf("bad", 100);
    t.ok(await expireBehind(bad.slice(0, 65), first), "more than a page of failures is passed");
    t.notOk(await expireBehind(bad.slice(65), second), "100 failures end the sweep of the bucket");
  },
);

t.test(
  "a log whose frames are lost can be closed, and other appends in the same call succeed",
  async (t) => {
    const { store, link } = await startLogNode(t, redis.url);
    const names = ["damaged", "other"].map(free);
    for (const name of names) await store.createLog(name, draftOf({ records: [Buffer.from("x")] }));
    const [frames = ""] = await redis.client().keys(`${link.keys.prefix}:*:logFrames:/damaged`);
    await link.write("del", frames);
    const appends = [
      store.appendLog(free("damaged"), appendOf([], { close: "closed" })),
      store.appendLog(free("other"), appendOf(["y"])),
    ];
    t.match(await Promise.all(appends), [{ verdict: "appended" }, { verdict: "appended" }]);
    t.same(await appendsOf(store, free("other")), [["x"], ["y"]]);
  },
);

t.test("a log can be read while no further writes are accepted", async (t) => {
  const node = await startLogNode(t, redis.url, { limits: { maxActiveBytes: 10_000 } });
  const { store } = node;
  await store.createLog(free("l"), draftOf({ ttlS: 1000, records: [Buffer.from("x")] }));
  node.time.nowMs += 900_000; // the read must store that the log was used
  await redis.client().call("CLIENT", "PAUSE", "2000", "WRITE");
  const writes = Array.from({ length: 40 }, () =>
    codeOf(store.appendLog(free("l"), appendOf(["y".repeat(300)]))),
  );
  t.match(await store.readLog(free("l"), { from: LOG_START, maxBytes: 100 }), { verdict: "read" });
  await redis.client().call("CLIENT", "UNPAUSE");
  t.ok((await Promise.all(writes)).includes("overloaded"), "there is no room for another write");
});

t.test("a closed log uses less memory than 1.3 times the size of its frames", async (t) => {
  const { store, link } = await startLogNode(t, redis.url);
  await store.createLog(free("big"), draftOf());
  for (let n = 0; n < 33; n++) await store.appendLog(free("big"), appendOf(["x".repeat(4000)]));
  const [frames = ""] = await redis.client().keys(`${link.keys.prefix}:*logFrames:/big`);
  const memory = async () => Number(await redis.client().call("MEMORY", "USAGE", frames));
  const open = await memory();
  await store.appendLog(free("big"), appendOf([], { close: "closed" }));
  const size = await redis.client().strlen(frames);
  const closed = await memory();
  t.ok(closed < open, `${open} bytes before, ${closed} after`);
  t.ok(closed < size * 1.3, `${closed} bytes for ${size}`);
  t.equal((await appendsOf(store, free("big"))).length, 33);
});

t.test("an append that reaches Redis after its deadline changes nothing", async (t) => {
  const server = await startRedis(t);
  const { store } = await startLogNode(t, server.url, { timeoutMs: 500 });
  await store.createLog(free("late"), draftOf());
  server.signal("SIGSTOP");
  t.equal(await codeOf(store.appendLog(free("late"), appendOf(["a"]))), "unavailable");
  server.signal("SIGCONT");
  while ((await codeOf(store.logHead(free("late")).then(() => {}))) !== undefined)
    await new Promise((resolve) => setTimeout(resolve, 20));
  t.same(await appendsOf(store, free("late")), []);
});

t.test(
  "a call that timed out changes nothing, even if Redis runs it immediately after the time-out",
  async (t) => {
    const server = await startRedis(t);
    const { store, link } = await startLogNode(t, server.url, { timeoutMs: 100 });
    await store.createLog(free("late"), draftOf());
    const wrong: number[] = [];
    for (let i = 0; i < volume(400); i++) {
      server.signal("SIGSTOP");
      const call =
        i % 2 === 0
          ? store.appendLog(free("late"), appendOf(["a"]))
          : link.write("set", `late${i}`, "1");
      t.equal(await codeOf(call), "unavailable");
      server.signal("SIGCONT");
      while ((await codeOf(store.logHead(free("late")).then(() => {}))) !== undefined)
        await new Promise((resolve) => setTimeout(resolve, 5));
      const records = await appendsOf(store, free("late"));
      const keys = await link.call("exists", `late${i}`);
      if (records.length > 0 || keys !== 0) wrong.push(i);
    }
    t.same(wrong, []);
  },
);

t.test("calls to logs after `close` are rejected with `unavailable`", async (t) => {
  const { store, close } = await startLogNode(t, redis.url);
  await close();
  t.equal(await codeOf(store.logHead(free("x"))), "unavailable");
  t.equal(await codeOf(store.appendLog(free("x"), appendOf(["a"]))), "unavailable");
});

/** Starts a TCP proxy whose target can be switched, which closes its connections. */
async function startSwitch(t: Pick<Test, "teardown">, port: number) {
  let target = port;
  const sockets = new Set<Socket>();
  const server = createServer((client) => {
    const redisSocket = tcp(target, "127.0.0.1");
    for (const socket of [client, redisSocket]) {
      sockets.add(socket);
      socket.on("close", () => sockets.delete(socket));
      socket.on("error", () => socket.destroy());
    }
    client.pipe(redisSocket).pipe(client);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const address = server.address();
  if (address === null || typeof address === "string") throw new Error("The proxy has no port");
  const drop = () => {
    for (const socket of sockets) socket.destroy();
  };
  t.teardown(() => {
    drop();
    server.close();
  });
  return {
    url: `redis://127.0.0.1:${address.port}`,
    switchTo(other: number) {
      target = other;
      drop();
    },
  };
}
