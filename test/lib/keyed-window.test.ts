// Tests which tasks of a key run at the same time.

import { KeyedWindow, type Pass } from "../../src/lib/keyed-window.ts";
import { t } from "../support/suite.ts";

function enter(window: KeyedWindow, key: string, started: string[], name: string) {
  const pass = window.enter(key) as Pass;
  void pass.turn.then(() => started.push(name));
  return pass;
}
const turn = () => new Promise((go) => setImmediate(go));

t.test("small tasks run at the same time, and a large task delays later tasks", async (t) => {
  const window = new KeyedWindow(10, 100);
  const started: string[] = [];
  const passes = ["a", "b", "c", "d"].map((name) => enter(window, "k", started, name));
  await turn();
  t.same(started, ["a", "b"], "two tasks of unknown size run at the same time");
  passes[0]?.setSize(1);
  await turn();
  t.same(started, ["a", "b", "c"]);
  passes[1]?.setSize(1000);
  passes[2]?.setSize(1);
  await turn();
  t.same(started, ["a", "b", "c"], "the large task fills the window");
  passes[1]?.leave();
  await turn();
  t.same(started, ["a", "b", "c", "d"]);
});

t.test("tasks with different keys do not wait for each other", async (t) => {
  const window = new KeyedWindow(10, 100);
  const started: string[] = [];
  enter(window, "k", started, "a").setSize(1000);
  enter(window, "k", started, "b");
  enter(window, "other", started, "c");
  await turn();
  t.same(started, ["a", "c"]);
});

t.test("a task is refused if the maximum number of tasks with its key is waiting", async (t) => {
  const window = new KeyedWindow(10, 3);
  for (let at = 0; at < 5; at++) t.ok(window.enter("k"));
  t.equal(window.enter("k"), undefined);
});

t.test("a task that leaves the window before it starts makes room for another task", async (t) => {
  const window = new KeyedWindow(10, 2);
  const started: string[] = [];
  const first = enter(window, "k", started, "a");
  first.setSize(1000);
  const cancelled = enter(window, "k", started, "b");
  const last = enter(window, "k", started, "c");
  t.equal(window.enter("k"), undefined, "two waiting tasks are the maximum");
  cancelled.leave();
  const next = enter(window, "k", started, "d");
  first.leave();
  await turn();
  t.same(started, ["a", "c", "d"], "the task that left does not start");
  last.leave();
  next.leave();
  for (const name of ["e", "f"]) enter(window, "k", started, name);
  await turn();
  t.same(started.slice(3), ["e", "f"], "finished tasks do not use the window");
});
