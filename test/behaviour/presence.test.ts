// Watching the online state of users on the socket: how they stand at once, then each change.

import type { NativeClient } from "../support/native-session.ts";
import { t } from "../support/suite.ts";
import { codeOf, eventually, range, startWorld } from "./world.ts";

const world = await startWorld(t);

/** `uid online flag` of every change pushed so far, in order. */
function changes(client: NativeClient): readonly string[] {
  return client
    .pushesOf("presence")
    .flatMap(({ presence }) => presence)
    .map(({ uid, online, flag }) => `${uid} ${online ? "on" : "off"} ${flag}`);
}

/** Resolves once so many changes came, with all of them. */
async function changed(client: NativeClient, count: number) {
  await client.waitFor(() => changes(client).length >= count, `${count} changes`);
  await client.ping();
  return changes(client);
}

t.test(
  "watching answers how they stand, in order; each opening and closing after that is pushed once [issue: presence watch]",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map((word) => world.name(word)) as [
      string,
      string,
      string,
    ];
    const watcher = await world.join(t, alice);
    const first = await world.join(t, bob, { flag: 1 });
    const { presence } = await watcher.watch([carol, bob, carol, alice]);
    t.same(presence, [
      { uid: carol, online: false, flag: 0 },
      { uid: bob, online: true, flag: 1 },
      { uid: carol, online: false, flag: 0 },
      { uid: alice, online: true, flag: 0 },
    ]);
    await world.join(t, carol, { flag: 2 });
    t.same(await changed(watcher, 1), [`${carol} on 2`]);
    await first.close();
    t.same(await changed(watcher, 2), [`${carol} on 2`, `${bob} off 0`]);
  },
);

t.test(
  "what changes nothing is not pushed: a second device behind the first one's flag [issue: presence watch]",
  async (t) => {
    const [alice, bob] = [world.name("alice"), world.name("bob")];
    const watcher = await world.join(t, alice);
    await world.join(t, bob, { flag: 0 });
    await watcher.watch([bob]);
    const second = await world.join(t, bob, { flag: 1 });
    await second.close();
    await eventually(async () => (await world.status(bob)).device_flag === 0);
    const main = await world.join(t, bob, { flag: 2, level: 1 });
    t.same(await changed(watcher, 1), [`${bob} on 2`], "the main device counts");
    await main.close();
    t.same(await changed(watcher, 2), [`${bob} on 2`, `${bob} on 0`]);
  },
);

t.test(
  "watching others ends the watching before; nobody ends it for good [issue: presence watch]",
  async (t) => {
    const [alice, bob, carol] = ["alice", "bob", "carol"].map((word) => world.name(word)) as [
      string,
      string,
      string,
    ];
    const watcher = await world.join(t, alice);
    await watcher.watch([bob]);
    await watcher.watch([carol]);
    await world.join(t, bob);
    await world.join(t, carol);
    t.same(await changed(watcher, 1), [`${carol} on 0`]);
    t.same((await watcher.watch([])).presence, []);
    (await world.join(t, bob, { flag: 1 })).kill();
    await world.join(t, world.name("late"));
    t.same(await changed(watcher, 1), [`${carol} on 0`]);
  },
);

t.test("each watcher is told; who watches nobody is not [issue: presence watch]", async (t) => {
  const bob = world.name("bob");
  const watchers = await Promise.all(
    ["w", "w", "w"].map((word) => world.join(t, world.name(word))),
  );
  const [first, second, other] = watchers as [NativeClient, NativeClient, NativeClient];
  await Promise.all([first.watch([bob]), second.watch([bob])]);
  const client = await world.join(t, bob);
  for (const watcher of [first, second]) t.same(await changed(watcher, 1), [`${bob} on 0`]);
  await first.close();
  await client.close();
  t.same(await changed(second, 2), [`${bob} on 0`, `${bob} off 0`]);
  t.same(await changed(other, 0), []);
});

t.test("up to 200 users can be watched, more are refused [issue: presence watch]", async (t) => {
  const watcher = await world.join(t, world.name("alice"));
  const uids = range(1, 200).map((n) => `${watcher.uid}-friend-${n}`);
  const { presence } = await watcher.watch(uids);
  t.same(
    presence.map(({ uid }) => uid),
    uids,
  );
  const last = uids.at(-1) ?? "";
  await world.join(t, last);
  t.same(await changed(watcher, 1), [`${last} on 0`]);
  t.equal(await codeOf(watcher.watch([...uids, "one-more"])), "too_large");
  t.equal(await codeOf(watcher.watch(["a@b"])), "bad_id");
});

t.test(
  "a storm of comings and goings ends with what is true [issue: presence watch]",
  async (t) => {
    const bob = world.name("bob");
    const watcher = await world.join(t, world.name("alice"));
    await watcher.watch([bob]);
    await world.register(bob);
    for (let round = 0; round < 10; round++) {
      const clients = await Promise.all([world.connect(t, bob), world.connect(t, bob)]);
      await Promise.all(clients.map((client) => client.close()));
    }
    const last = await world.connect(t, bob);
    await eventually(() => changes(watcher).at(-1) === `${bob} on 0`);
    await last.close();
    await eventually(() => changes(watcher).at(-1) === `${bob} off 0`);
    const repeats = changes(watcher).filter((one, at, all) => one === all[at - 1]);
    t.same(repeats, [], "each change once");
  },
);
