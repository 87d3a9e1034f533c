// Lists of thousands of groups, as connects ask for them, share the event loop. JINDOU_TEST_GROUPS:
// how many groups.

import { t } from "../../support/suite.ts";
import { openStore, testFolder } from "./folder.ts";

const GROUPS = Number(process.env.JINDOU_TEST_GROUPS ?? 800);
const LISTS = 40;
/**
 * A machine that is busy elsewhere may hold up any one of them; of a list that is read within a
 * slice the next one does not wait.
 */
const ATTEMPTS = 3;

t.test("lists of many groups that are asked for at once alternate", async (t) => {
  const store = await openStore(t, testFolder(t), {});
  const flags = { large: false, ban: false, disband: false, sendBan: false };
  const groups = Array.from({ length: GROUPS }, (_, at) => `g${at}`);
  await Promise.all(
    groups.map((id) =>
      store.createChannel({ id, type: 2, allowStranger: false, ...flags }, ["alice"]),
    ),
  );
  let share = 1;
  let most = 0;
  for (let at = 0; at < ATTEMPTS && (share >= 0.25 || most < LISTS - 1); at++) {
    const watch = watchIterations();
    const lists = await Promise.all(Array.from({ length: LISTS }, () => store.groupsOf("alice")));
    const { iterations, longestMs, tookMs } = watch.end();
    t.comment(`${iterations} iterations, ${longestMs} of ${tookMs} ms`);
    t.ok(
      lists.every((ids) => ids.length === GROUPS),
      "all lists are whole",
    );
    share = Math.min(share, longestMs / tookMs);
    most = Math.max(most, iterations);
  }
  t.ok(most >= LISTS - 1, "one list goes on per iteration");
  t.ok(share < 0.25, "no iteration takes a quarter of the work");
});

/** Counts the iterations of the event loop, and times the longest. */
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
