// Tests which steps run and which wait for a permit.

import { PacedSteps } from "../../src/lib/paced-steps.ts";
import { Semaphore } from "../../src/lib/semaphore.ts";
import { t } from "../support/suite.ts";

/** Steps that end when `end` is called. */
class Steps {
  readonly started: string[] = [];
  readonly #ends = new Map<string, (error?: Error) => void>();

  step(name: string): () => Promise<string> {
    return () => {
      this.started.push(name);
      return new Promise((done, fail) =>
        this.#ends.set(name, (error) => (error ? fail(error) : done(name))),
      );
    };
  }

  async end(name: string, error?: Error): Promise<void> {
    this.#ends.get(name)?.(error);
    await new Promise(setImmediate);
  }
}

t.test(
  "steps run at the same time up to the number of permits, and the other steps start in the order of their calls",
  async (t) => {
    const semaphore = new Semaphore(2);
    const steps = new Steps();
    const done = ["a", "b", "c", "d", "e"].map((name) => semaphore.run(steps.step(name)));
    t.same(steps.started, ["a", "b"], "steps start immediately while permits are free");
    await steps.end("b");
    t.same(steps.started, ["a", "b", "c"]);
    await steps.end("a");
    t.same(steps.started, ["a", "b", "c", "d"]);
    for (const name of ["c", "d", "e"]) await steps.end(name);
    t.same(await Promise.all(done), ["a", "b", "c", "d", "e"]);
    for (const name of ["f", "g", "h"]) void semaphore.run(steps.step(name));
    t.same(steps.started.slice(5), ["f", "g"], "the number of permits stays the same");
  },
);

t.test("a step that fails releases its permit", async (t) => {
  const semaphore = new Semaphore(1);
  const steps = new Steps();
  const failing = t.rejects(semaphore.run(steps.step("a")), { message: "no" });
  const thrown = t.rejects(
    semaphore.run(() => {
      throw new Error("at once");
    }),
    { message: "at once" },
  );
  const next = semaphore.run(steps.step("b"));
  await steps.end("a", new Error("no"));
  await failing;
  await thrown;
  t.same(steps.started, ["a", "b"]);
  await steps.end("b");
  t.equal(await next, "b");
});

t.test(
  "a paced semaphore passes its permits on in later turns of the event loop if the current turn has no time left",
  async (t) => {
    const semaphore = new Semaphore(1, new PacedSteps(0));
    let count = 0;
    const done = Array.from({ length: 5 }, () => semaphore.run(() => count++));
    let turns = 0;
    for (; count < 5; turns++) await new Promise(setImmediate);
    t.ok(turns >= 3, `5 steps ran in ${turns} turns`);
    await Promise.all(done);
  },
);
