// The order in which a keyed lock runs steps.

import { KeyedLock } from "../../src/lib/keyed-lock.ts";
import { t } from "../support/suite.ts";

t.test(
  "steps with the same key run one after the other, even after a failure, and steps with other keys do not wait",
  async (t) => {
    const lock = new KeyedLock();
    const log: string[] = [];
    const step =
      (name: string, fails = false) =>
      async () => {
        log.push(`${name} begins`);
        await new Promise(setImmediate);
        log.push(`${name} ends`);
        if (fails) throw new Error(name);
        return name;
      };
    const first = lock.run("k", step("a", true));
    const second = lock.run("k", step("b"));
    const other = lock.run("l", step("c"));
    await t.rejects(first, { message: "a" });
    t.equal(await second, "b");
    t.equal(await other, "c");
    const linesOfK = log.filter((line) => !line.startsWith("c"));
    t.same(linesOfK, ["a begins", "a ends", "b begins", "b ends"]);
    t.ok(log.indexOf("c begins") < log.indexOf("b begins"));
  },
);
