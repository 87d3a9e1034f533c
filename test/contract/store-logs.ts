// Contract of `LogStore` in `broker/log-ports.ts`, which every driver runs. Each test has an empty
// store of its own.

import type { Test } from "tap";
import {
  framesIn,
  isSameOffset,
  LOG_START,
  type LogOffset,
  logNameText,
} from "../../src/broker/log-frame.ts";
import { MAX_FORK_DEPTH, MAX_LOG_EVENT_BYTES } from "../../src/broker/log-ports.ts";
import {
  appended,
  appendOf,
  appendsOf,
  bytesOf,
  created,
  draftOf,
  endingOf,
  forkOf,
  free,
  fullLimit,
  type LogDriver,
  type LogFixture,
  producerOf,
  read,
  sizeOf,
} from "./log-fixture.ts";

const NAME = free("chats/1");
const JSON_TYPE = { contentType: "application/json" };

/** Runs the whole contract against the driver. */
export function logContract(t: Test, driver: LogDriver): void {
  const suite = (title: string, run: (t: Test, driver: LogDriver) => void) =>
    t.test(`${driver.name}: ${title}`, async (t) => run(t, driver));
  suite("logs are created once", creating);
  suite("records are appended and read", appending);
  suite("an offset is valid only in the log that returned it", offsets);
  suite("a closed log stays closed", closing);
  suite("a producer's retries are recognised", producing);
  suite("logs stay within their limits", limits);
  suite("a deleted log cannot be read", deleting);
  suite("a fork inherits frames", forking);
  suite("a log expires", expiring);
  suite("changes of logs are published", events);
}

function creating(t: Test, driver: LogDriver): void {
  t.test("a created log has the requested configuration, even after a restart", async (t) => {
    const fixture = await driver.open(t);
    const draft = draftOf({ contentType: "text/plain; charset=UTF-8", ttlS: 3600 });
    const head = await created(fixture.store.createLog(NAME, draft));
    t.match(head, { contentType: "text/plain; charset=UTF-8", ttlS: 3600, records: 0 });
    t.strictSame([head.tail, head.closed, head.expiresAtMs], [LOG_START, undefined, undefined]);
    t.strictSame(await fixture.store.logHead(NAME), head);
    await fixture.reopen();
    t.strictSame(await fixture.store.logHead(NAME), head);
    t.equal(await fixture.store.logHead(free("chats/2")), "missing");
  });

  t.test(
    "creating a log again changes nothing, and a different configuration conflicts",
    async (t) => {
      const { store } = await driver.open(t);
      const draft = draftOf({ ttlS: 60 });
      const head = await created(store.createLog(NAME, draft));
      const again = { ...draft, contentType: "TEXT/plain;charset=utf-8", records: [bytesOf("x")] };
      t.strictSame(await store.createLog(NAME, again), { verdict: "exists", head });
      for (const over of [
        ...[{ contentType: "text/html" }, { ttlS: 61 }, { ttlS: undefined }, { closed: "closed" }],
        { ttlS: undefined, expiresAtMs: 4_000_000_000_000 },
        { origin: forkOf("chats/2") },
      ] as const)
        t.strictSame(
          await store.createLog(NAME, { ...draft, ...over }),
          { verdict: "conflict" },
          JSON.stringify(over),
        );
      t.strictSame(await store.logHead(NAME), head);
      await store.appendLog(NAME, appendOf([], { close: "closed" }));
      t.strictSame(
        await store.createLog(NAME, draft),
        { verdict: "conflict" },
        "the log is closed",
      );
      const closed = await store.createLog(NAME, { ...draft, closed: "closed" });
      t.equal(closed.verdict, "exists");
    },
  );

  t.test("a log can be created with its first records and closed in one call", async (t) => {
    const fixture = await driver.open(t);
    const records = ["one", "", "two"].map(bytesOf);
    const draft = draftOf({ ...JSON_TYPE, closed: "closed", records });
    const head = await created(fixture.store.createLog(NAME, draft));
    t.match(head, { records: 3, closed: "closed" });
    await fixture.reopen();
    t.strictSame(await appendsOf(fixture.store, NAME), [["one", "", "two"]]);
    t.equal(await endingOf(fixture.store, NAME), "closed");
  });

  t.test("only one of several concurrent calls with the same name creates the log", async (t) => {
    const { store } = await driver.open(t);
    const calls = Array.from({ length: 10 }, () => store.createLog(NAME, draftOf()));
    const verdicts = (await Promise.all(calls)).map(({ verdict }) => verdict);
    t.strictSame(verdicts.toSorted(), ["created", ...Array(9).fill("exists")]);
  });
}

function appending(t: Test, driver: LogDriver): void {
  t.test("appends keep their boundaries and their order, even after a restart", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf(JSON_TYPE)));
    const appends = [["1"], ["2", "3"], ["é", "", "x".repeat(20_000)], ["4"]];
    const calls = appends.map((texts) => fixture.store.appendLog(NAME, appendOf(texts, JSON_TYPE)));
    const results = await Promise.all(calls.map(appended));
    t.strictSame(await appendsOf(fixture.store, NAME), appends);
    let position = 0;
    for (const [i, { tail }] of results.entries()) {
      position += sizeOf(appends[i] ?? []);
      t.equal(tail.position, position, `tail after append ${i}`);
    }
    await fixture.reopen();
    t.strictSame(await appendsOf(fixture.store, NAME), appends);
    await appended(fixture.store.appendLog(NAME, appendOf(["5"], JSON_TYPE)));
    t.strictSame(await appendsOf(fixture.store, NAME), [...appends, ["5"]]);
    const head = await fixture.store.logHead(NAME);
    t.match(head, { records: 8 });
  });

  t.test("reads of the same range return the same bytes, before and after a restart", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf()));
    const ends: LogOffset[] = [LOG_START];
    const reads = new Map<LogOffset, Buffer>();
    for (let i = 0; i < 60; i++) {
      const { tail } = await appended(
        fixture.store.appendLog(NAME, appendOf([`${i} `.repeat(1 + ((i * 37) % 300))])),
      );
      ends.push(tail);
      if (i % 20 === 10) await fixture.sweep();
      if (i === 30) await collect(100_000);
    }
    await collect(1);
    await fixture.sweep();
    await collect(1000);
    await fixture.reopen();
    await collect(65_536);
    t.equal(reads.size, ends.length);

    /** Reads from every offset to the tail, and compares with the bytes of earlier reads. */
    async function collect(maxBytes: number): Promise<void> {
      for (const end of ends) {
        const bytes = await bytesFrom(fixture, end, maxBytes);
        const before = reads.get(end) ?? bytes;
        t.ok(bytes.subarray(0, before.length).equals(before), `bytes from ${end.position}`);
        reads.set(end, bytes);
      }
    }
  });

  t.test(
    "a read returns as many whole frames as fit into maxBytes, and always at least one frame",
    async (t) => {
      const fixture = await driver.open(t);
      await created(fixture.store.createLog(NAME, draftOf()));
      for (let i = 0; i < 10; i++)
        await appended(fixture.store.appendLog(NAME, appendOf(["abcd"])));
      const size = sizeOf(["abcd"]);
      for (const stage of ["before", "after"]) {
        for (const [maxBytes, frames] of [
          ...[[1, 1] as const, [size, 1] as const, [size + 1, 1] as const, [3 * size, 3] as const],
          [1000, 10] as const,
        ]) {
          const { pieces, next, start } = await read(fixture.store, NAME, LOG_START, maxBytes);
          const count = pieces.flatMap((piece) => [...framesIn(piece)]).length;
          t.equal(count, frames, `frames of at most ${maxBytes} bytes ${stage} a checkpoint`);
          t.equal(next.position, frames * size);
          t.strictSame(start, LOG_START);
        }
        await fixture.sweep();
      }
    },
  );

  t.test("a read that starts at the tail of a log returns no frames", async (t) => {
    const { store } = await driver.open(t);
    await created(store.createLog(NAME, draftOf()));
    t.strictSame((await read(store, NAME)).pieces, [], "the log is empty");
    const { tail } = await appended(store.appendLog(NAME, appendOf(["a"])));
    for (const from of [tail, undefined]) {
      const { pieces, start, next, head } = await store
        .readLog(NAME, { from, maxBytes: 100 })
        .then((result) => result as Awaited<ReturnType<typeof read>>);
      t.strictSame([pieces, start, next, head.tail], [[], tail, tail, tail]);
    }
  });

  t.test("an append to a log that does not exist is refused", async (t) => {
    const { store } = await driver.open(t);
    t.strictSame(await store.appendLog(NAME, appendOf(["a"])), { verdict: "missing" });
    t.strictSame(await store.appendLog(NAME, appendOf([], { close: "closed" })), {
      verdict: "missing",
    });
    t.strictSame(await store.readLog(NAME, { from: LOG_START, maxBytes: 1 }), {
      verdict: "missing",
    });
  });

  t.test("records whose media type differs from that of the log are refused", async (t) => {
    const { store } = await driver.open(t);
    await created(store.createLog(NAME, draftOf()));
    const other = appendOf(["1"], JSON_TYPE);
    t.strictSame(await store.appendLog(NAME, other), { verdict: "other_type" });
    await appended(store.appendLog(NAME, appendOf(["1"], { contentType: "Text/PLAIN; a=b" })));
    t.strictSame(await appendsOf(store, NAME), [["1"]]);
  });

  t.test(
    "an append is refused if its `order`, compared bytewise, is not higher than the last `order` in the log",
    async (t) => {
      const fixture = await driver.open(t);
      await created(fixture.store.createLog(NAME, draftOf()));
      const verdictOf = async (order: string | undefined) => {
        const { verdict } = await fixture.store.appendLog(NAME, appendOf(["x"], { order }));
        return verdict;
      };
      t.equal(await verdictOf("2"), "appended");
      t.equal(await verdictOf("10"), "out_of_order");
      t.equal(await verdictOf("2"), "out_of_order");
      t.equal(await verdictOf(undefined), "appended");
      await fixture.reopen();
      t.equal(await verdictOf("2"), "out_of_order", "the order is stored");
      t.equal(await verdictOf("20"), "appended");
      t.equal(await verdictOf("A"), "appended");
      t.equal(await verdictOf("a"), "appended");
      t.equal(await verdictOf("é"), "appended");
      t.equal(await verdictOf("z"), "out_of_order");
    },
  );
}

function offsets(t: Test, driver: LogDriver): void {
  t.test("a read from an offset at which no frame ends returns the verdict `lost`", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf()));
    // The record contains bytes that look like the end of a frame with its check.
    const forged = Buffer.concat([bytesOf("ab"), Buffer.from([7, 0, 0, 0]), bytesOf("cd")]);
    const tails: LogOffset[] = [];
    for (const records of [[bytesOf("a")], [forged], [bytesOf("b")]]) {
      const append = appendOf(["-"], { records });
      tails.push((await appended(fixture.store.appendLog(NAME, append))).tail);
    }
    const [first = LOG_START, , last = LOG_START] = tails;
    for (const stage of ["before", "after"]) {
      for (const [from, title] of [
        [{ position: 0, check: 1 }, "position 0 with a check"],
        [{ ...first, check: first.check ^ 1 }, "a different check"],
        [{ ...last, check: last.check ^ 1 }, "the tail with a different check"],
        [{ position: last.position + 1, check: last.check }, "after the tail"],
        [{ position: Number.MAX_SAFE_INTEGER, check: 0 }, "far after the tail"],
        [{ position: first.position + 1, check: first.check }, "inside a frame"],
        [{ position: first.position + 5 + 2 + 4, check: 7 }, "the check is in the record"],
      ] as const) {
        const { verdict } = await fixture.store.readLog(NAME, { from, maxBytes: 100 });
        t.equal(verdict, "lost", `${title} ${stage} a checkpoint`);
      }
      for (const from of [LOG_START, ...tails]) await read(fixture.store, NAME, from);
      await fixture.sweep();
    }
  });

  t.test(
    "after a log was deleted and created again, a read from an offset of the deleted log returns the verdict `lost`",
    async (t) => {
      const { store } = await driver.open(t);
      const heads = [];
      const tails: LogOffset[] = [];
      for (let i = 0; i < 2; i++) {
        heads.push(await created(store.createLog(NAME, draftOf())));
        tails.push((await appended(store.appendLog(NAME, appendOf(["same"])))).tail);
        if (i === 0) t.equal(await store.deleteLog(NAME), "done");
      }
      t.not(heads[0]?.incarnation, heads[1]?.incarnation);
      const [before = LOG_START, after = LOG_START] = tails;
      t.equal(before.position, after.position);
      t.equal((await store.readLog(NAME, { from: before, maxBytes: 1 })).verdict, "lost");
      t.ok(isSameOffset((await read(store, NAME, after)).next, after));
    },
  );
}

function closing(t: Test, driver: LogDriver): void {
  t.test("a log that has ended refuses records, and closing it again has no effect", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf()));
    await appended(fixture.store.appendLog(NAME, appendOf(["a"])));
    const close = appendOf(["b"], { close: "interrupted" });
    const { tail, closed } = await appended(fixture.store.appendLog(NAME, close));
    t.equal(closed, "interrupted");
    for (const stage of ["at once", "after a restart"]) {
      const refused = { verdict: "closed", tail, closed: "interrupted" };
      t.strictSame(await fixture.store.appendLog(NAME, appendOf(["c"])), refused, stage);
      t.strictSame(
        await fixture.store.appendLog(NAME, appendOf(["c"], JSON_TYPE)),
        refused,
        "closed is checked before the media type",
      );
      t.strictSame(
        await fixture.store.appendLog(NAME, appendOf([], { close: "closed" })),
        { verdict: "repeated", tail, closed: "interrupted", producer: undefined },
        "closing again changes nothing",
      );
      t.strictSame(await appendsOf(fixture.store, NAME), [["a"], ["b"]], stage);
      t.equal((await read(fixture.store, NAME)).head.closed, "interrupted");
      await fixture.reopen();
    }
  });

  t.test(
    "a small log that was closed keeps its records after a checkpoint and a restart",
    async (t) => {
      const fixture = await driver.open(t);
      await created(fixture.store.createLog(NAME, draftOf()));
      const { tail: first } = await appended(fixture.store.appendLog(NAME, appendOf(["a"])));
      await fixture.sweep();
      await appended(fixture.store.appendLog(NAME, appendOf(["b"])));
      await appended(fixture.store.appendLog(NAME, appendOf([], { close: "closed" })));
      for (let i = 0; i < 3; i++) {
        t.strictSame(await appendsOf(fixture.store, NAME), [["a"], ["b"]]);
        t.strictSame(await appendsOf(fixture.store, NAME, first), [["b"]]);
        t.strictSame(await appendsOf(fixture.store, NAME, LOG_START, 1), [["a"], ["b"]]);
        if (i === 0) await fixture.sweep();
        else await fixture.reopen();
      }
    },
  );
}

function producing(t: Test, driver: LogDriver): void {
  t.test(
    "a producer's append is accepted, recognised as a retry or refused according to its epoch and number",
    async (t) => {
      const fixture = await driver.open(t);
      const { store } = fixture;
      await created(store.createLog(NAME, draftOf()));
      const send = (number: number, epoch: number) =>
        store.appendLog(NAME, appendOf([`${epoch}.${number}`], producerOf(number, epoch)));
      t.strictSame(await send(1, 3), { verdict: "gap", expected: 0 }, "the producer is unknown");
      t.match(await send(0, 3), { verdict: "appended", producer: { epoch: 3, number: 0 } });
      t.match(await send(1, 3), { verdict: "appended", producer: { epoch: 3, number: 1 } });
      t.match(await send(0, 3), { verdict: "repeated", producer: { epoch: 3, number: 1 } });
      t.match(await send(1, 3), { verdict: "repeated", producer: { epoch: 3, number: 1 } });
      t.strictSame(await send(3, 3), { verdict: "gap", expected: 2 });
      t.strictSame(await send(2, 2), { verdict: "stale_epoch", epoch: 3 });
      t.strictSame(await send(1, 4), { verdict: "bad_start" });
      t.match(await send(0, 4), { verdict: "appended", producer: { epoch: 4, number: 0 } });
      t.strictSame(await send(2, 3), { verdict: "stale_epoch", epoch: 4 });
      const other = appendOf(["q"], producerOf(0, 0, "q"));
      t.match(await store.appendLog(NAME, other), { verdict: "appended" }, "another producer");
      t.strictSame(await appendsOf(store, NAME), [["3.0"], ["3.1"], ["4.0"], ["q"]]);
    },
  );

  t.test("a retry of an append is recognised after a checkpoint and after a restart", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf()));
    const send = (number: number) =>
      fixture.store.appendLog(NAME, appendOf([`${number}`], producerOf(number)));
    for (let number = 0; number < 4; number++) {
      t.match(await send(number), { verdict: "appended" });
      if (number === 1) await fixture.sweep();
      else if (number === 2) await fixture.reopen();
      t.match(await send(number), { verdict: "repeated", producer: { epoch: 0, number } });
    }
    t.strictSame(await appendsOf(fixture.store, NAME), [["0"], ["1"], ["2"], ["3"]]);
  });

  t.test(
    "a retry of an append is recognised even if its `order` has already been used or the log is closed",
    async (t) => {
      const { store } = await driver.open(t);
      await created(store.createLog(NAME, draftOf()));
      const append = appendOf(["a"], { ...producerOf(0), order: "5" });
      await appended(store.appendLog(NAME, append));
      t.match(await store.appendLog(NAME, append), { verdict: "repeated" });
      const next = appendOf(["b"], { ...producerOf(1), order: "5" });
      t.strictSame(await store.appendLog(NAME, next), { verdict: "out_of_order" });
      const close = appendOf(["c"], { ...producerOf(1), close: "closed" });
      await appended(store.appendLog(NAME, close));
      const retry = await store.appendLog(NAME, { ...close, records: [bytesOf("other")] });
      t.match(retry, { verdict: "repeated", closed: "closed", producer: { epoch: 0, number: 1 } });
      t.match(await store.appendLog(NAME, appendOf(["d"], producerOf(2))), { verdict: "closed" });
      const closeAgain = appendOf([], { ...producerOf(2), close: "closed" });
      t.match(await store.appendLog(NAME, closeAgain), { verdict: "closed" });
      t.strictSame(await appendsOf(store, NAME), [["a"], ["c"]]);
    },
  );

  t.test("a producer can close a log without appending a record", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf()));
    const close = appendOf([], { ...producerOf(0), close: "closed" });
    await appended(fixture.store.appendLog(NAME, close));
    await fixture.reopen();
    t.match(await fixture.store.appendLog(NAME, close), { verdict: "repeated", closed: "closed" });
    t.equal(await endingOf(fixture.store, NAME), "closed");
  });

  t.test("concurrent retries of an append add its records only once", async (t) => {
    const { store } = await driver.open(t);
    await created(store.createLog(NAME, draftOf()));
    const sends = Array.from({ length: 20 }, (_, i) =>
      store.appendLog(NAME, appendOf(["x"], producerOf(i >> 2))),
    );
    const verdicts = (await Promise.all(sends)).map(({ verdict }) => verdict);
    t.equal(verdicts.filter((verdict) => verdict === "appended").length, 5);
    t.equal((await appendsOf(store, NAME)).length, 5);
  });
}

function limits(t: Test, driver: LogDriver): void {
  t.test(
    "an append that would exceed the log's maximum size is refused and changes nothing",
    async (t) => {
      const { store } = await driver.open(t, { maxBytes: 2 * sizeOf(["abcd"]), maxRecords: 3 });
      await created(store.createLog(NAME, draftOf()));
      await appended(store.appendLog(NAME, appendOf(["abcd"])));
      t.equal(await fullLimit(store.appendLog(NAME, appendOf(["abcde"]))), "bytes");
      const { tail } = await appended(store.appendLog(NAME, appendOf(["abcd"])));
      t.equal(await fullLimit(store.appendLog(NAME, appendOf([""]))), "bytes");
      t.match(await store.appendLog(NAME, appendOf([], { close: "closed" })), { tail });
      t.equal(
        await fullLimit(store.createLog(free("b"), draftOf({ records: [Buffer.alloc(100)] }))),
        "bytes",
      );
      t.equal(await store.logHead(free("b")), "missing");
    },
  );

  t.test("a log that exceeds a lowered `maxBytes` or `maxRecords` can be closed", async (t) => {
    const limits = { maxBytes: 1000, maxRecords: 3 };
    const fixture = await driver.open(t, limits);
    for (const path of ["bytes", "records"]) {
      await created(fixture.store.createLog(free(path), draftOf()));
      await appended(fixture.store.appendLog(free(path), appendOf(["abcd", "abcd"])));
    }
    for (const [path, lowered] of [
      ["bytes", { maxBytes: 10 }],
      ["records", { maxRecords: 1 }],
    ] as const) {
      Object.assign(limits, lowered);
      await fixture.reopen();
      const close = appendOf([], { close: "closed" });
      t.match(await fixture.store.appendLog(free(path), close), { verdict: "appended" }, path);
    }
  });

  t.test(
    "an append that would exceed the log's maximum number of records is refused",
    async (t) => {
      const { store } = await driver.open(t, { maxRecords: 3 });
      await created(store.createLog(NAME, draftOf(JSON_TYPE)));
      const append = (texts: readonly string[]) =>
        store.appendLog(NAME, appendOf(texts, JSON_TYPE));
      await appended(append(["1", "2"]));
      t.equal(await fullLimit(append(["3", "4"])), "records");
      await appended(append(["3"]));
      t.equal(await fullLimit(append(["4"])), "records");
      t.strictSame(await appendsOf(store, NAME), [["1", "2"], ["3"]]);
    },
  );

  t.test(
    "a producer beyond `maxProducers` replaces only a producer that has been silent for the dedupe window",
    async (t) => {
      const fixture = await driver.open(t, { maxProducers: 2 });
      await created(fixture.store.createLog(NAME, draftOf()));
      const send = (id: string, number: number) =>
        fixture.store.appendLog(NAME, appendOf([id], producerOf(number, 0, id)));
      await appended(send("a", 0));
      fixture.advance(1000);
      await appended(send("b", 0));
      t.equal(await fullLimit(send("c", 0)), "producers");
      fixture.advance(86_400_000);
      await appended(send("b", 1));
      await appended(send("c", 0));
      t.strictSame(await send("a", 1), { verdict: "gap", expected: 0 }, "producer a was forgotten");
      t.equal(await fullLimit(send("a", 0)), "producers");
      await fixture.reopen();
      t.strictSame(await send("a", 1), { verdict: "gap", expected: 0 });
      t.match(await send("b", 1), { verdict: "repeated" });
      t.match(await send("c", 0), { verdict: "repeated" });
    },
  );

  t.test("a log whose head is not in memory can be read, and retries are recognised", async (t) => {
    const fixture = await driver.open(t, { maxOpen: 2 });
    const names = Array.from({ length: 8 }, (_, i) => free(`n${i}`));
    for (const name of names) await created(fixture.store.createLog(name, draftOf()));
    await fixture.sweep();
    for (const [i, name] of names.entries())
      await appended(fixture.store.appendLog(name, appendOf([`${i}`], producerOf(0))));
    await fixture.sweep();
    for (const [i, name] of names.entries()) {
      t.strictSame(await appendsOf(fixture.store, name), [[`${i}`]]);
      t.match(await fixture.store.appendLog(name, appendOf(["x"], producerOf(0))), {
        verdict: "repeated",
      });
    }
  });
}

function deleting(t: Test, driver: LogDriver): void {
  t.test("a deleted log without forks is reported as missing, and its name is free", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    t.equal(await store.deleteLog(NAME), "missing");
    await created(store.createLog(NAME, draftOf()));
    await appended(store.appendLog(NAME, appendOf(["a"], producerOf(0))));
    t.equal(await store.deleteLog(NAME), "done");
    t.equal(await store.deleteLog(NAME), "missing");
    t.equal(await store.logHead(NAME), "missing");
    t.strictSame(await store.appendLog(NAME, appendOf(["a"])), { verdict: "missing" });
    await created(store.createLog(NAME, draftOf(JSON_TYPE)));
    t.strictSame(await appendsOf(store, NAME), []);
    t.match(await store.appendLog(NAME, appendOf(["b"], { ...JSON_TYPE, ...producerOf(0) })), {
      verdict: "appended",
    });
    await fixture.reopen();
    t.strictSame(await appendsOf(fixture.store, NAME), [["b"]]);
  });

  for (const size of [10, 40_000])
    t.test(`a deleted log with records of ${size} bytes leaves no data`, async (t) => {
      const fixture = await driver.open(t);
      for (const [i, isSwept] of [true, false].entries()) {
        const name = free(`log/${i}`);
        await created(fixture.store.createLog(name, draftOf({ ttlS: 1000 })));
        for (let number = 0; number < 3; number++)
          await appended(
            fixture.store.appendLog(name, appendOf(["x".repeat(size)], producerOf(number))),
          );
        if (isSwept) await fixture.sweep();
        if (i === 0) await appended(fixture.store.appendLog(name, appendOf(["x"])));
        if (isSwept) t.not((await fixture.leftovers()).length, 0, "the log is stored");
        t.equal(await fixture.store.deleteLog(name), "done");
      }
      await fixture.sweep();
      t.strictSame(await fixture.leftovers(), []);
      await fixture.reopen();
      t.strictSame(await fixture.leftovers(), []);
    });
}

function forking(t: Test, driver: LogDriver): void {
  t.test(
    "a fork has the source's frames up to the fork offset, followed by its own frames",
    async (t) => {
      const fixture = await driver.open(t);
      const { store } = fixture;
      await created(store.createLog(NAME, draftOf({ records: [bytesOf("a")] })));
      const { tail: second } = await appended(store.appendLog(NAME, appendOf(["b"])));
      await appended(store.appendLog(NAME, appendOf(["c"])));
      const [atStart, atSecond, atTail] = [free("f/0"), free("f/1"), free("f/2")];
      const fork = (offset?: LogOffset) => draftOf({ origin: forkOf("chats/1", offset) });
      await created(store.createLog(atStart, fork(LOG_START)));
      const draft = { ...fork(second), records: [bytesOf("own")], contentType: undefined };
      const head = await created(store.createLog(atSecond, draft));
      t.match(head, { records: 3, contentType: "text/plain", closed: undefined });
      await created(store.createLog(atTail, fork()));
      for (const [i, name] of [NAME, atStart, atSecond, atTail].entries())
        await appended(store.appendLog(name, appendOf([`later ${i}`], producerOf(0))));
      for (const stage of ["at once", "after a checkpoint", "after a restart"]) {
        const later = (i: number) => [`later ${i}`];
        t.strictSame(await appendsOf(fixture.store, atStart), [later(1)], stage);
        t.strictSame(
          await appendsOf(fixture.store, atSecond),
          [["a"], ["b"], ["own"], later(2)],
          stage,
        );
        t.strictSame(
          await appendsOf(fixture.store, atTail),
          [["a"], ["b"], ["c"], later(3)],
          stage,
        );
        t.strictSame(await appendsOf(fixture.store, atSecond, second), [["own"], later(2)], stage);
        t.strictSame(
          await appendsOf(fixture.store, NAME),
          [["a"], ["b"], ["c"], later(0)],
          "the source does not change",
        );
        if (stage === "at once") await fixture.sweep();
        else await fixture.reopen();
      }
    },
  );

  t.test("the frames that a fork inherits have the same offsets as in the source", async (t) => {
    const { store } = await driver.open(t);
    await created(store.createLog(NAME, draftOf()));
    const tails: LogOffset[] = [];
    for (const text of ["a", "b", "c"])
      tails.push((await appended(store.appendLog(NAME, appendOf([text])))).tail);
    const [first = LOG_START, second = LOG_START, third = LOG_START] = tails;
    const name = free("fork");
    await created(store.createLog(name, draftOf({ origin: forkOf("chats/1", second) })));
    await appended(store.appendLog(name, appendOf(["x"])));
    t.strictSame(await appendsOf(store, name, first), [["b"], ["x"]]);
    t.strictSame(await appendsOf(store, name, second), [["x"]]);
    const { verdict } = await store.readLog(name, { from: third, maxBytes: 1 });
    t.equal(verdict, "lost", "an offset of the source after the fork offset is lost");
  });

  t.test("a fork with a sub-offset inherits part of the frame after the fork offset", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    await created(store.createLog(NAME, draftOf({ records: [bytesOf("a")] })));
    const { tail } = await appended(store.appendLog(NAME, appendOf(["bcdef"])));
    const [, { tail: first }] = [tail, await appended(store.appendLog(NAME, appendOf(["g"])))];
    const offset = { position: sizeOf(["a"]), check: await checkAt(fixture, sizeOf(["a"])) };
    for (const [subOffset, appends] of [
      [0, [["a"]]],
      [2, [["a"], ["bc"]]],
      [5, [["a"], ["bcdef"]]],
    ] as const) {
      const name = free(`fork/${subOffset}`);
      const origin = forkOf("chats/1", offset, subOffset);
      await created(store.createLog(name, draftOf({ origin })));
      t.strictSame(await appendsOf(store, name), appends);
      await appended(store.appendLog(name, appendOf(["!"])));
      t.strictSame(await appendsOf(store, name), [...appends, ["!"]]);
      t.equal((await store.createLog(name, draftOf({ origin }))).verdict, "exists");
    }
    for (const [origin, verdict] of [
      [forkOf("chats/1", offset, 6), "bad_sub_offset"],
      [forkOf("chats/1", first, 1), "bad_sub_offset"],
      [forkOf("chats/1", { ...first, position: first.position + 1 }), "bad_offset"],
      [forkOf("chats/1", { ...first, check: first.check ^ 1 }), "bad_offset"],
      [forkOf("other", LOG_START), "source_missing"],
    ] as const)
      t.strictSame(await store.createLog(free("bad"), draftOf({ origin })), { verdict });
    t.strictSame(
      await store.createLog(free("bad"), draftOf({ ...JSON_TYPE, origin: forkOf("chats/1") })),
      { verdict: "source_type" },
    );
    t.equal(await store.logHead(free("bad")), "missing");
    t.equal(await store.deleteLog(free("fork/2")), "done");
    await fixture.reopen();
    t.strictSame(await appendsOf(fixture.store, free("fork/5")), [["a"], ["bcdef"], ["!"]]);
  });

  t.test("a sub-offset in a JSON log counts records", async (t) => {
    const { store } = await driver.open(t);
    const records = ["1", "2", "3"].map(bytesOf);
    await created(store.createLog(NAME, draftOf({ ...JSON_TYPE, records })));
    for (const [subOffset, appends] of [
      [1, [["1"]]],
      [2, [["1", "2"]]],
      [3, [["1", "2", "3"]]],
    ] as const) {
      const origin = forkOf("chats/1", LOG_START, subOffset);
      const name = free(`fork/${subOffset}`);
      const draft = draftOf({ contentType: undefined, origin });
      t.equal((await created(store.createLog(name, draft))).records, subOffset);
      t.strictSame(await appendsOf(store, name), appends);
    }
    const origin = forkOf("chats/1", LOG_START, 4);
    t.strictSame(await store.createLog(free("bad"), draftOf({ ...JSON_TYPE, origin })), {
      verdict: "bad_sub_offset",
    });
  });

  t.test(
    "creating a fork again returns `exists`, and a different fork of the same name conflicts",
    async (t) => {
      const { store } = await driver.open(t);
      for (const path of ["a", "b"])
        await created(store.createLog(free(path), draftOf({ records: [bytesOf("1")] })));
      const { tail } = await appended(store.appendLog(free("a"), appendOf(["2"])));
      const offset = { position: sizeOf(["1"]), check: await checkIn(store, "a", sizeOf(["1"])) };
      const name = free("fork");
      const draft = (origin?: ReturnType<typeof forkOf>) => draftOf({ origin });
      await created(store.createLog(name, draft(forkOf("a", offset, 1))));
      const verdicts = [];
      for (const origin of [
        ...[forkOf("a", offset, 1), forkOf("a", offset, 0), forkOf("a", tail, 1)],
        ...[forkOf("a", LOG_START, 1), forkOf("b", LOG_START, 1), undefined],
      ])
        verdicts.push((await store.createLog(name, draft(origin))).verdict);
      t.strictSame(verdicts, ["exists", ...Array(5).fill("conflict")]);
      const other = draftOf({ origin: forkOf("a", offset, 1), ttlS: 60 });
      t.equal(
        (await store.createLog(name, other)).verdict,
        "conflict",
        "a fork with a different time to live conflicts",
      );
      await created(store.createLog(free("own"), other));
      t.equal((await store.createLog(free("own"), other)).verdict, "exists");
      const inherited = draft(forkOf("a", offset, 1));
      t.equal((await store.createLog(free("own"), inherited)).verdict, "conflict");
      const atTail = draft(forkOf("a"));
      await created(store.createLog(free("tail"), atTail));
      await appended(store.appendLog(free("a"), appendOf(["3"])));
      t.equal(
        (await store.createLog(free("tail"), atTail)).verdict,
        "exists",
        "the tail has moved",
      );
    },
  );

  t.test("a fork of a fork has the frames of both sources", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    await created(store.createLog(free("a"), draftOf({ records: [bytesOf("1")] })));
    await created(store.createLog(free("b"), draftOf({ origin: forkOf("a") })));
    await appended(store.appendLog(free("b"), appendOf(["2"])));
    const origin = forkOf("b");
    await created(store.createLog(free("c"), draftOf({ origin, records: [bytesOf("3")] })));
    const early = forkOf("c", { position: sizeOf(["1"]), check: await checkIn(store, "a", 14) });
    await created(store.createLog(free("d"), draftOf({ origin: early })));
    for (const maxBytes of [1, 65_536]) {
      t.strictSame(await appendsOf(store, free("c"), LOG_START, maxBytes), [["1"], ["2"], ["3"]]);
      t.strictSame(await appendsOf(store, free("d"), LOG_START, maxBytes), [["1"]]);
    }
    for (const path of ["a", "b"]) t.equal(await store.deleteLog(free(path)), "done");
    await fixture.reopen();
    t.strictSame(await appendsOf(fixture.store, free("c")), [["1"], ["2"], ["3"]]);
  });

  t.test(
    "a chain of forks has at most 64 sources, and the data of deleted sources is kept until the last fork is deleted",
    async (t) => {
      const fixture = await driver.open(t);
      const { store } = fixture;
      const depth = MAX_FORK_DEPTH;
      await created(store.createLog(free("f/0"), draftOf({ records: [bytesOf("0")] })));
      for (let i = 1; i <= depth; i++) {
        const origin = forkOf(`f/${i - 1}`);
        await created(
          store.createLog(free(`f/${i}`), draftOf({ origin, records: [bytesOf("x")] })),
        );
        t.equal(await store.deleteLog(free(`f/${i - 1}`)), "done");
      }
      const last = free(`f/${depth}`);
      t.strictSame(
        await store.createLog(free("deeper"), draftOf({ origin: forkOf(`f/${depth}`) })),
        {
          ...{ verdict: "full", limit: "depth" },
        },
      );
      t.equal(await store.logHead(free("deeper")), "missing");
      const { pieces } = await read(store, last);
      t.equal(framesIn(pieces[0] ?? new Uint8Array(0)).next().done, false);
      t.equal((await appendsOf(store, last)).length, depth + 1);
      t.equal(await store.deleteLog(last), "done");
      t.equal(await untilMissing(fixture, free("f/0")), "missing");
      await fixture.sweep();
      t.strictSame(await fixture.leftovers(), []);
    },
  );

  t.test(
    "the records of a deleted source stay readable in its forks, and the source is removed with the last fork",
    async (t) => {
      const fixture = await driver.open(t);
      const source = free("a");
      await created(fixture.store.createLog(source, draftOf({ records: [bytesOf("1")] })));
      const forks = [free("b"), free("c")];
      for (const name of forks)
        await created(fixture.store.createLog(name, draftOf({ origin: forkOf("a") })));
      const nested = free("d");
      await created(fixture.store.createLog(nested, draftOf({ origin: forkOf("b") })));
      t.equal(await fixture.store.deleteLog(source), "done");
      await fixture.reopen();
      const { store } = fixture;
      t.equal(await store.deleteLog(source), "deleted");
      t.equal(await store.logHead(source), "deleted");
      t.strictSame(await store.appendLog(source, appendOf(["x"])), { verdict: "deleted" });
      t.strictSame(await store.createLog(source, draftOf()), { verdict: "deleted" });
      t.strictSame(await store.readLog(source, { from: LOG_START, maxBytes: 1 }), {
        verdict: "deleted",
      });
      t.strictSame(await store.createLog(free("e"), draftOf({ origin: forkOf("a") })), {
        verdict: "source_deleted",
      });
      for (const name of [...forks, nested]) t.strictSame(await appendsOf(store, name), [["1"]]);
      for (const name of forks) t.equal(await store.deleteLog(name), "done");
      t.strictSame(await appendsOf(store, nested), [["1"]], "the nested fork reads the source");
      t.equal(await store.logHead(source), "deleted");
      t.equal(await store.deleteLog(nested), "done");
      for (const name of [source, ...forks, nested])
        t.equal(await untilMissing(fixture, name), "missing");
      await created(store.createLog(source, draftOf()));
      t.strictSame(await appendsOf(store, source), []);
      t.equal(await store.deleteLog(source), "done");
      await fixture.sweep();
      t.strictSame(await fixture.leftovers(), []);
    },
  );

  t.test("a source remains after all of its forks are deleted", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    await created(store.createLog(free("a"), draftOf({ records: [bytesOf("1")] })));
    await created(store.createLog(free("b"), draftOf({ origin: forkOf("a") })));
    t.equal(await store.deleteLog(free("b")), "done");
    await fixture.sweep();
    t.strictSame(await appendsOf(store, free("a")), [["1"]]);
    t.equal(await store.deleteLog(free("a")), "done");
    t.equal(await store.logHead(free("a")), "missing");
  });

  t.test("a fork of a closed log is open and has no producers", async (t) => {
    const { store } = await driver.open(t);
    await created(store.createLog(free("a"), draftOf()));
    const last = appendOf(["1"], { ...producerOf(0), order: "9", close: "closed" });
    await appended(store.appendLog(free("a"), last));
    await created(store.createLog(free("b"), draftOf({ origin: forkOf("a") })));
    const append = appendOf(["2"], { ...producerOf(0), order: "1" });
    await appended(store.appendLog(free("b"), append));
    t.strictSame(await appendsOf(store, free("b")), [["1"], ["2"]]);
    t.equal(await endingOf(store, free("b")), undefined);
  });
}

function expiring(t: Test, driver: LogDriver): void {
  t.test("a log expires if it is not used for 1 to 1.25 times its time to live", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    for (const [path, use] of [
      ["read", (name) => store.readLog(name, { from: undefined, maxBytes: 1 })],
      ["append", (name) => store.appendLog(name, appendOf(["x"]))],
      ["close", (name) => store.appendLog(name, appendOf([], { close: "closed" }))],
      ["head", (name) => store.logHead(name)],
    ] satisfies [string, (name: ReturnType<typeof free>) => Promise<unknown>][]) {
      const name = free(path);
      await created(store.createLog(name, draftOf({ ttlS: 100 })));
      fixture.advance(60_000);
      await use(name);
      fixture.advance(66_000);
      const isUse = path !== "head";
      t.equal(typeof (await store.logHead(name)) === "object", isUse, `${path} after 126 s`);
      fixture.advance(33_000);
      if (isUse) t.type(await store.logHead(name), "object", `${path} 99 s after the use`);
      fixture.advance(27_000);
      t.equal(await store.logHead(name), "missing", `${path} 126 s after the use`);
      t.strictSame(await store.appendLog(name, appendOf(["x"])), { verdict: "missing" });
      await created(store.createLog(name, draftOf({ ttlS: 100 })));
      t.strictSame(await appendsOf(store, name), [], "the new log is empty");
    }
  });

  t.test("a repeated append counts as a use of the log", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf({ ttlS: 100 })));
    const append = appendOf(["x"], { producer: { id: "p", epoch: 0, number: 0 } });
    await appended(fixture.store.appendLog(NAME, append));
    fixture.advance(60_000);
    t.match(await fixture.store.appendLog(NAME, append), { verdict: "repeated" });
    fixture.advance(66_000);
    t.type(await fixture.store.logHead(NAME), "object");
  });

  t.test("a log's time of last use survives a restart", async (t) => {
    const fixture = await driver.open(t);
    await created(fixture.store.createLog(NAME, draftOf({ ttlS: 100 })));
    await fixture.sweep();
    fixture.advance(90_000);
    await read(fixture.store, NAME);
    await fixture.reopen();
    fixture.advance(90_000);
    t.type(await fixture.store.logHead(NAME), "object");
    fixture.advance(36_000);
    t.equal(await fixture.store.logHead(NAME), "missing");
  });

  t.test("a read does not postpone a fixed expiry time", async (t) => {
    const fixture = await driver.open(t);
    const expiresAtMs = fixture.now() + 50_000;
    await created(fixture.store.createLog(NAME, draftOf({ expiresAtMs })));
    fixture.advance(49_000);
    await read(fixture.store, NAME);
    fixture.advance(1001);
    t.equal(await fixture.store.logHead(NAME), "missing");
  });

  t.test("expired logs leave no data", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    for (let i = 0; i < 5; i++) {
      const name = free(`log/${i}`);
      await created(store.createLog(name, draftOf({ ttlS: 10 + i })));
      await appended(store.appendLog(name, appendOf(["x".repeat(5000 * i)], producerOf(0))));
      if (i % 2 === 0) await fixture.sweep();
    }
    await created(store.createLog(free("fork"), draftOf({ origin: forkOf("log/3") })));
    fixture.advance(11 * 1250);
    await fixture.sweep();
    t.equal(await store.logHead(free("log/0")), "missing");
    t.type(await store.logHead(free("log/4")), "object");
    fixture.advance(20_000);
    await fixture.sweep();
    await fixture.sweep();
    t.strictSame(await fixture.leftovers(), []);
  });

  t.test("the records of an expired source stay readable in its forks", async (t) => {
    const fixture = await driver.open(t);
    const { store } = fixture;
    await created(store.createLog(free("a"), draftOf({ ttlS: 100, records: [bytesOf("1")] })));
    await created(store.createLog(free("long"), draftOf({ origin: forkOf("a"), ttlS: 1000 })));
    const inherited = await created(store.createLog(free("b"), draftOf({ origin: forkOf("a") })));
    t.equal(inherited.ttlS, 100);
    fixture.advance(126_000);
    t.equal(await store.logHead(free("a")), "deleted");
    t.strictSame(await store.createLog(free("a"), draftOf()), { verdict: "deleted" });
    t.equal(await store.logHead(free("b")), "missing");
    await fixture.sweep();
    const isPublished = () =>
      fixture.events.some(({ nameText, change }) => change === "deleted" && nameText === "/a");
    while (!isPublished()) await new Promise((resolve) => setImmediate(resolve));
    t.strictSame(await appendsOf(store, free("long")), [["1"]]);
    t.equal(await store.logHead(free("a")), "deleted");
    t.equal(await store.deleteLog(free("long")), "done");
    t.equal(await untilMissing(fixture, free("a")), "missing");
    await fixture.sweep();
    t.strictSame(await fixture.leftovers(), []);
  });
}

function events(t: Test, driver: LogDriver): void {
  t.test(
    "appends, the close and the deletion of a log are published in the order of the calls",
    async (t) => {
      const fixture = await driver.open(t);
      const { store } = fixture;
      const { incarnation } = await created(store.createLog(NAME, draftOf()));
      const small = await appended(store.appendLog(NAME, appendOf(["a"])));
      const large = await appended(
        store.appendLog(NAME, appendOf(["x".repeat(MAX_LOG_EVENT_BYTES)])),
      );
      await appended(store.appendLog(NAME, appendOf(["b"], { close: "cancelled" })));
      await store.appendLog(NAME, appendOf(["c"]));
      await store.appendLog(NAME, appendOf([], { close: "closed" }));
      t.equal(await store.deleteLog(NAME), "done");
      while (fixture.events.length < 4) await new Promise((resolve) => setImmediate(resolve));
      const [first, second, third, last, ...others] = fixture.events;
      const common = { kind: "log", nameText: logNameText(NAME), incarnation };
      t.match(first, { ...common, change: "appended", from: LOG_START, tail: small.tail });
      t.equal(first?.closed, undefined);
      const { pieces: [piece = new Uint8Array(0)] = [] } = { pieces: [first?.frame] };
      t.equal(framesIn(piece ?? new Uint8Array(0)).next().done, false, "the frame is in the event");
      t.match(second, { ...common, change: "appended", from: small.tail, tail: large.tail });
      t.equal(second?.frame, undefined, "a large frame is not published");
      t.match(third, { ...common, change: "appended", from: large.tail, closed: "cancelled" });
      t.match(last, { ...common, change: "deleted", closed: "cancelled" });
      t.strictSame(others, [], "refused calls publish nothing");
    },
  );
}

/** Returns all bytes from the offset to the tail. */
async function bytesFrom(
  { store }: LogFixture,
  from: LogOffset,
  maxBytes: number,
): Promise<Buffer> {
  const all: Uint8Array[] = [];
  let at = from;
  for (;;) {
    const { pieces, next, head } = await read(store, NAME, at, maxBytes);
    all.push(...pieces);
    if (isSameOffset(next, head.tail)) return Buffer.concat(all);
    at = next;
  }
}

function checkAt({ store }: LogFixture, position: number): Promise<number> {
  return checkIn(store, "chats/1", position);
}

/** Returns the check of the frame that ends at the position. */
async function checkIn(
  store: LogFixture["store"],
  path: string,
  position: number,
): Promise<number> {
  let at = 0;
  for (const piece of (await read(store, free(path))).pieces)
    for (const { bytes, check } of framesIn(piece)) {
      at += bytes.length;
      if (at === position) return check;
    }
  throw new Error(`No frame ends at ${position}.`);
}

/** Waits until the log is removed. This may happen later than the removal of its last fork. */
async function untilMissing(
  { store, sweep }: LogFixture,
  name: ReturnType<typeof free>,
): Promise<unknown> {
  for (let i = 0; i < 100; i++) {
    const head = await store.logHead(name);
    if (head === "missing") return head;
    await sweep();
  }
  return store.logHead(name);
}
