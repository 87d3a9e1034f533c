// Tests how HTTP calls read pages of messages, and that a node can serve other clients between two
// pages. The tests run without a node, because a client could only measure how long it waits for a
// page (bench/attacks.ts).

import { setImmediate } from "node:timers/promises";
import { MessagePages } from "../../src/api/message-pages.ts";
import type { Message } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";

const messages = (count: number) =>
  Array.from({ length: count }, (_, at) => ({ messageSeq: at }) as Message);
/** A caller that stays connected. */
const CALLER = { onAborted: () => undefined };
const toJson = ({ messageSeq }: Message) => ({ seq: messageSeq });

t.test("the messages of a page are returned as JSON, in order", async (t) => {
  const pages = new MessagePages();
  const read = async () => ({ messages: messages(1000), more: true });
  const { page, json } = await pages.read(CALLER, read, toJson);
  t.equal(page.more, true);
  t.same(JSON.parse(json), messages(1000).map(toJson));
  t.equal((await pages.read(CALLER, async () => ({ messages: [] }), toJson)).json, "[]");
});

t.test(
  "at most two pages of messages are read at the same time, and each read begins in a different turn of the event loop",
  async (t) => {
    const pages = new MessagePages();
    let started = 0;
    let finish = () => {};
    const finished = new Promise<void>((resolve) => {
      finish = resolve;
    });
    const read = async () => {
      started += 1;
      await finished;
      return { messages: messages(1) };
    };
    const calls = Array.from({ length: 5 }, () => pages.read(CALLER, read, toJson));
    t.equal(started, 0, "no page is read in the turn of the call");
    const starts: number[] = [];
    for (let turn = 0; turn < 10; turn++) {
      await setImmediate();
      starts.push(started);
    }
    t.ok(starts.includes(1), "one page is read in a turn");
    t.equal(started, 2);
    finish();
    await Promise.all(calls);
    t.equal(started, 5);
  },
);

t.test("a failed read of a page does not block the reads of later pages", async (t) => {
  const pages = new MessagePages();
  const fail = () => Promise.reject(new Error("away"));
  for (let i = 0; i < 3; i++)
    await t.rejects(pages.read(CALLER, fail, toJson), { message: "away" });
  t.equal(
    (await pages.read(CALLER, async () => ({ messages: messages(1) }), toJson)).json,
    '[{"seq":0}]',
  );
});

t.test("no page is read for a caller that disconnects while waiting", async (t) => {
  const pages = new MessagePages();
  let reads = 0;
  const read = async () => {
    reads += 1;
    return { messages: messages(1) };
  };
  const calls = Array.from({ length: 10 }, () => {
    let abort = () => {};
    const caller = {
      onAborted(step: () => void) {
        abort = step;
      },
    };
    return { reply: pages.read(caller, read, toJson), abort };
  });
  for (const { abort } of calls.slice(2, 9)) abort();
  const outcomes = await Promise.allSettled(calls.map(({ reply }) => reply));
  t.equal(outcomes.filter(({ status }) => status === "fulfilled").length, 3);
  t.equal(reads, 3);
});

t.test("a call for a page is refused as overloaded if 500 such calls already wait", async (t) => {
  const pages = new MessagePages();
  const read = async () => ({ messages: messages(1) });
  const calls = Array.from({ length: 501 }, () => pages.read(CALLER, read, toJson));
  const callers: (() => void)[] = [];
  const caller = { onAborted: (step: () => void) => callers.push(step) };
  const aborted = pages.read(caller, read, toJson);
  await t.rejects(pages.read(CALLER, read, toJson), { code: "overloaded" });
  for (const abort of callers) abort();
  const next = pages.read(CALLER, read, toJson);
  await t.rejects(pages.read(CALLER, read, toJson), { code: "overloaded" });
  await t.rejects(aborted, { code: "unavailable" });
  t.ok(await next, "a call takes the place of a waiting call whose caller has disconnected");
  await Promise.all(calls);
  t.ok(await pages.read(CALLER, read, toJson), "later calls are served");
});
