// Work of one key within a bound, in order.

import { KeyedWindow, type Pass } from "../../src/lib/keyed-window.ts";
import { t } from "../support/suite.ts";

function enter(window: KeyedWindow, key: string, begun: string[], name: string) {
  const pass = window.enter(key) as Pass;
  void pass.turn.then(() => begun.push(name));
  return pass;
}
const turn = () => new Promise((go) => setImmediate(go));

t.test("small work goes on side by side, large work alone", async (t) => {
  const window = new KeyedWindow(10, 100);
  const begun: string[] = [];
  const passes = ["a", "b", "c", "d"].map((name) => enter(window, "k", begun, name));
  await turn();
  t.same(begun, ["a", "b"], "two are not weighed yet");
  passes[0]?.setSize(1);
  await turn();
  t.same(begun, ["a", "b", "c"]);
  passes[1]?.setSize(1000);
  passes[2]?.setSize(1);
  await turn();
  t.same(begun, ["a", "b", "c"], "the large one fills the window");
  passes[1]?.leave();
  await turn();
  t.same(begun, ["a", "b", "c", "d"]);
});

t.test("keys do not wait for each other", async (t) => {
  const window = new KeyedWindow(10, 100);
  const begun: string[] = [];
  enter(window, "k", begun, "a").setSize(1000);
  enter(window, "k", begun, "b");
  enter(window, "other", begun, "c");
  await turn();
  t.same(begun, ["a", "c"]);
});

t.test("too much that waits is refused", async (t) => {
  const window = new KeyedWindow(10, 3);
  for (let at = 0; at < 5; at++) t.ok(window.enter("k"));
  t.equal(window.enter("k"), undefined);
});

t.test("work that leaves before its turn frees its place", async (t) => {
  const window = new KeyedWindow(10, 2);
  const begun: string[] = [];
  const first = enter(window, "k", begun, "a");
  first.setSize(1000);
  const left = enter(window, "k", begun, "b");
  const last = enter(window, "k", begun, "c");
  t.equal(window.enter("k"), undefined, "two wait");
  left.leave();
  const next = enter(window, "k", begun, "d");
  first.leave();
  await turn();
  t.same(begun, ["a", "c", "d"], "what left does not begin");
  last.leave();
  next.leave();
  for (const name of ["e", "f"]) enter(window, "k", begun, name);
  await turn();
  t.same(begun.slice(3), ["e", "f"], "nothing of the earlier work is counted");
});
