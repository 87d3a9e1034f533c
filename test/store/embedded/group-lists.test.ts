// Lists of thousands of groups, which connecting sessions read, share the event loop.
// JINDOU_TEST_GROUPS: number of groups.

import { t } from "../../support/suite.ts";
import { openStore, testFolder } from "./folder.ts";

const GROUPS = Number(process.env.JINDOU_TEST_GROUPS ?? 800);
const LISTS = 40;
/**
 * Number of attempts. An attempt fails if a busy machine delays a single iteration, or if two lists
 * are read in one iteration because the first list needs less than a time slice.
 */
const ATTEMPTS = 3;

t.test(
  "concurrent reads of long group lists are spread over several event-loop iterations",
  async (t) => {
    const store = await openStore(t, testFolder(t), {});
    const flags = { ban: false, disband: false, sendBan: false, clientEvents: true };
    const groups = Array.from({ length: GROUPS }, (_, at) => `g${at}`);
    await Promise.all(
      groups.map((id) =>
        store.createChannel({ id, type: 2, allowStranger: false, large: false, ...flags }, [
          "alice",
        ]),
      ),
    );
    let share = 1;
    let mostIterations = 0;
    for (let at = 0; at < ATTEMPTS && (share >= 0.25 || mostIterations < LISTS - 1); at++) {
      const watch = watchIterations();
      const lists = await Promise.all(Array.from({ length: LISTS }, () => store.groupsOf("alice")));
      const { iterations, longestMs, tookMs } = watch.end();
      t.comment(
        `the lists took ${iterations} iterations and ${tookMs} ms, the longest iteration ${longestMs} ms`,
      );
      t.ok(
        lists.every((ids) => ids.length === GROUPS),
        "all lists are complete",
      );
      share = Math.min(share, longestMs / tookMs);
      mostIterations = Math.max(mostIterations, iterations);
    }
    t.ok(mostIterations >= LISTS - 1, "each iteration completes at most one list");
    t.ok(share < 0.25, "no iteration does a quarter of the work");
  },
);

/** Counts the iterations of the event loop, and measures the longest one. */
function watchIterations() {
  const startMs = performance.now();
  let iterations = 0;
  let longestMs = 0;
  let lastMs = startMs;
  let isOver = false;
  setImmediate(function next() {
    const nowMs = performance.now();
    iterations += 1;
    longestMs = Math.max(longestMs, nowMs - lastMs);
    lastMs = nowMs;
    if (!isOver) setImmediate(next);
  });
  return {
    end() {
      isOver = true;
      return { iterations, longestMs, tookMs: performance.now() - startMs };
    },
  };
}
