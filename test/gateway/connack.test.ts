// Messages sent after the CONNACK: before the node sends the CONNACK, it has subscribed to all
// groups of the session.

import { t } from "../support/suite.ts";
import { clientView } from "./client-view.ts";
import { seeded } from "./random.ts";
import { group, World } from "./world.ts";

t.test(
  "messages sent after the CONNACK reach the session, even while other sessions open and close",
  async (t) => {
    for (let seed = 0; seed < 100; seed++) {
      const random = seeded(seed);
      const world = new World(random);
      const ids = ["g1", "g2", "g3"];
      for (const id of ids)
        for (const uid of ["alice", "bob"]) world.server.setMember(id, uid, true);
      await world.server.settle();
      const bob = await world.live({ uid: "bob" });
      const points = random.chance(0.5) ? [{ channel: group("g2"), lastSeq: 0 }] : [];
      const alice = world.session({ uid: "alice", points });
      const joining = world.join(alice);
      const leavesAt = random.below(30);
      for (let at = 0; !alice.session.hasConnack; at++) {
        if (at === leavesAt) world.disconnect(bob);
        await world.server.step();
      }
      const sent = ids.map((id) => world.server.append({ channel: group(id), fromUid: "bob" }));
      await world.server.settle();
      await joining;
      const got = clientView(alice.connection.seen, points).nos;
      t.same(
        [...got].sort(),
        [...sent].sort(),
        `every message after the CONNACK is pushed with seed ${seed}`,
      );
      world.disconnect(alice);
      world.disconnect(bob);
      await world.server.settle();
      t.same([...world.server.subscriptions], []);
    }
  },
);
