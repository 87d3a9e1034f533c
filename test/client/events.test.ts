// Event handlers, and the errors they throw.

import { JindouError } from "../../src/client/errors.ts";
import { Events } from "../../src/client/events.ts";
import { t } from "../support/suite.ts";

t.test(
  "handlers are called in the order in which they were added, and a handler that was added twice is called twice until it is removed once",
  async (t) => {
    const events = new Events();
    const seen: string[] = [];
    const first = (status: string) => seen.push(`first ${status}`);
    const removeFirst = events.on("status", first);
    events.on("status", (status) => seen.push(`second ${status}`));
    events.on("status", first);
    events.emit("status", "online");
    removeFirst();
    removeFirst();
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

t.test(
  "a handler that throws causes an error event, and the other handlers are still called",
  async (t) => {
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
  },
);

t.test("a handler whose promise is rejected causes an error event", async (t) => {
  const events = new Events();
  const bug = new TypeError("a bug");
  const reported = new Promise((resolve) => events.on("error", resolve));
  events.on("status", async () => {
    await Promise.resolve();
    throw bug;
  });
  events.emit("status", "online");
  t.match(await reported, { code: "handler_failed", cause: bug });
});

t.test("an error handler that throws or rejects is not called with its own error", async (t) => {
  for (const isAsync of [false, true]) {
    const events = new Events();
    const bug = new TypeError("a bug in the error handler");
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

t.test(
  "the error of a handler becomes an uncaught exception if there is no error handler",
  async (t) => {
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
  },
);
