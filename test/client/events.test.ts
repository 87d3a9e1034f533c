// Handlers and what they throw.

import { JindouError } from "../../src/client/errors.ts";
import { Events } from "../../src/client/events.ts";
import { t } from "../support/suite.ts";

t.test(
  "handlers are called in order until they are taken away, one added twice twice",
  async (t) => {
    const events = new Events();
    const seen: string[] = [];
    const first = (status: string) => seen.push(`first ${status}`);
    const off = events.on("status", first);
    events.on("status", (status) => seen.push(`second ${status}`));
    events.on("status", first);
    events.emit("status", "online");
    off();
    off();
    events.emit("status", "closed");
    t.same(seen, [
      "first online",
      "second online",
      "first online",
      "second closed",
      "first closed",
    ]);
  },
);

t.test("a handler that throws is told as an error and stops nobody", async (t) => {
  const events = new Events();
  const seen: unknown[] = [];
  const bug = new TypeError("a bug");
  events.on("error", ({ code, cause }) => seen.push(code, cause));
  events.on("status", () => {
    throw bug;
  });
  events.on("status", (status) => seen.push(status));
  events.emit("status", "online");
  t.same(seen, ["handler_failed", bug, "online"]);
});

t.test("a handler whose promise is rejected is told as an error too", async (t) => {
  const events = new Events();
  const bug = new TypeError("a bug");
  const told = new Promise((resolve) => events.on("error", resolve));
  events.on("status", async () => {
    await Promise.resolve();
    throw bug;
  });
  events.emit("status", "online");
  t.match(await told, { code: "handler_failed", cause: bug });
});

t.test("what a handler of errors throws, or rejects with, is not told to it again", async (t) => {
  for (const isAsync of [false, true]) {
    const events = new Events();
    const bug = new TypeError("a bug in the handler of errors");
    const uncaught = new Promise((resolve) => {
      process.once("uncaughtException", resolve);
    });
    let calls = 0;
    events.on("error", () => {
      calls += 1;
      if (isAsync) return Promise.reject(bug);
      throw bug;
    });
    events.emit("error", new JindouError("timeout"));
    t.equal(await uncaught, bug);
    t.equal(calls, 1);
  }
});

t.test("where nobody listens for errors, it is an uncaught exception", async (t) => {
  const events = new Events();
  const bug = new TypeError("a bug");
  const uncaught = new Promise((resolve) => {
    process.once("uncaughtException", resolve);
  });
  events.on("status", () => {
    throw bug;
  });
  events.emit("status", "online");
  t.equal(await uncaught, bug);
});
