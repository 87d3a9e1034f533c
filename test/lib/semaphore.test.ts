// Who takes a place and who waits for one.

import { Semaphore } from "../../src/lib/semaphore.ts";
import { t } from "../support/suite.ts";

/** Steps that go on when they are told to; `begun` lists those that have begun. */
class Steps {
  readonly begun: string[] = [];
  readonly #ends = new Map<string, (error?: Error) => void>();

  step(name: string): () => Promise<string> {
    return () => {
      this.begun.push(name);
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
  "as many steps run at once as there are places, the rest in the order they came",
  async (t) => {
    const line = new Semaphore(2);
    const steps = new Steps();
    const done = ["a", "b", "c", "d", "e"].map((name) => line.run(steps.step(name)));
    t.same(steps.begun, ["a", "b"], "at once, before anything is waited for");
    await steps.end("b");
    t.same(steps.begun, ["a", "b", "c"]);
    await steps.end("a");
    t.same(steps.begun, ["a", "b", "c", "d"]);
    for (const name of ["c", "d", "e"]) await steps.end(name);
    t.same(await Promise.all(done), ["a", "b", "c", "d", "e"]);
    for (const name of ["f", "g", "h"]) void line.run(steps.step(name));
    t.same(steps.begun.slice(5), ["f", "g"], "no place is lost or won");
  },
);

t.test("a step that fails gives up its place", async (t) => {
  const line = new Semaphore(1);
  const steps = new Steps();
  const failing = t.rejects(line.run(steps.step("a")), { message: "no" });
  const thrown = t.rejects(
    line.run(() => {
      throw new Error("at once");
    }),
    { message: "at once" },
  );
  const next = line.run(steps.step("b"));
  await steps.end("a", new Error("no"));
  await failing;
  await thrown;
  t.same(steps.begun, ["a", "b"]);
  await steps.end("b");
  t.equal(await next, "b");
});
