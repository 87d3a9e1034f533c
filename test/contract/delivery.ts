// The delivery contract: what a store and a cluster promise together to who listens, whatever
// happens on the way. Played through `onEvent`, `listen`, `append`, `streamEvent`,
// `removeSubscribers`, `barrier`, `recovery` only.

import { randomUUID } from "node:crypto";
import type { Test } from "tap";
import {
  type ChannelKey,
  type ChannelRef,
  channelKey,
  groupTopic,
  PERSON_CHANNEL,
  presenceTopic,
  userTopic,
} from "../../src/broker/model.ts";
import type { ClusterEvent, GroupJudge } from "../../src/broker/ports.ts";
import { Random } from "../support/random.ts";
import { measureStalls } from "../support/stalls.ts";
import { volume } from "../support/volume.ts";
import {
  type DeliveryDriver,
  type DeliveryNode,
  disorder,
  judgeOf,
  KINDS,
  newPlace,
  PASSING,
  type Place,
  producer,
  range,
  roundTrips,
  say,
  texts,
  until,
  viewOf,
} from "./delivery-bench.ts";
import { group as groupInfo, PERMANENT } from "./store-bench.ts";

/**
 * A subscriber connection is known to be silent, and what was published meanwhile is read, within
 * this time on a free machine.
 */
const NOTICED_MS = 5000;
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
const COURSES = volume(10, "JINDOU_TEST_ROUNDS");

/** Runs the whole contract against the driver. */
export function deliveryContract(t: Test, driver: DeliveryDriver): void {
  for (const [what, suite] of [
    ["what is published", published],
    ["single publications", singles],
    ["barriers", barriers],
    ["cuts", cuts],
    ["silence", silence],
    ["lost history", lostHistory],
    ["removals", removals],
    ["the work of a resync", resync],
    ["random courses", courses],
  ] as const)
    t.test(`${driver.name}: ${what}`, (t) => suite(t, driver));
}

/** A node that listens to the place, and one that does not. */
async function pair(
  t: Test,
  { open }: DeliveryDriver,
  place: Place,
  judge?: GroupJudge,
): Promise<{ hearer: DeliveryNode; teller: DeliveryNode; id: string }> {
  const hearer = await open(t, judge && { judge });
  const teller = await open(t);
  await hearer.cluster.listen(place.topic);
  return { hearer, teller, id: hearer.cluster.nodeId };
}

const isWhole = ({ cluster }: DeliveryNode): boolean => {
  const recovery = cluster.recovery(() => true);
  recovery?.catch(() => {}); // it is asked for again
  return recovery === undefined;
};
const hasTold = (node: DeliveryNode, place: Place, text: string) =>
  until(() => texts(node, place).includes(text), `${text} is told`);

async function published(t: Test, driver: DeliveryDriver): Promise<void> {
  t.test("messages of many senders come in the store's order", async (t) => {
    const place = newPlace("group");
    const { hearer, teller } = await pair(t, driver, place);
    const third = await driver.open(t);
    await third.cluster.listen(place.topic);
    const all = await Promise.all(
      range(1, 100).map(async (at) => {
        const { messageSeq } = await say(at % 2 ? teller : hearer, place, `${at}`);
        return { at, messageSeq };
      }),
    );
    all.sort((a, b) => a.messageSeq - b.messageSeq);
    const ordered = all.map(({ at }) => `${at}`);
    for (const node of [hearer, third]) {
      await node.cluster.barrier();
      t.same(texts(node, place), ordered);
    }
    t.same(teller.events, [], "a node that does not listen hears nothing");
  });

  t.test("two users of one node hear a personal message once", async (t) => {
    const place = newPlace("personal");
    const { hearer, teller } = await pair(t, driver, place);
    await hearer.cluster.listen(userTopic(place.sender));
    for (const at of range(1, 20)) await say(teller, place, `${at}`);
    await hearer.cluster.barrier();
    t.same(texts(hearer, place), range(1, 20).map(String));
  });

  t.test("what is not stored comes in its turn", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const { hearer, teller } = await pair(t, driver, place);
      for (const at of range(1, 6)) await say(teller, place, `${at}`, at % 2 ? PASSING : {});
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), range(1, 6).map(String), kind);
    }
  });

  t.test("who listens later hears what comes later", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const [hearer, teller] = [await driver.open(t), await driver.open(t)];
      await say(teller, place, "before");
      await new Promise((go) => setTimeout(go, 1500)); // a personal one of the last second may come too, says docs/cluster.md
      await hearer.cluster.listen(place.topic);
      await say(teller, place, "later");
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), ["later"], kind);
    }
  });

  t.test("streams come in turn with messages", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const { hearer, teller } = await pair(t, driver, place);
      const stream = producer(teller, place);
      await stream.start();
      await stream.content("one ");
      await say(teller, place, "amid");
      await stream.content("two");
      await stream.end();
      await hearer.cluster.barrier();
      const order = hearer.events.flatMap((one) => {
        if (one.kind === "message") return [`${one.message.messageSeq}`];
        return one.kind === "event" ? [one.event.data] : [];
      });
      t.same(order, ["1", "{}", "one ", "2", "two", ""], kind);
    }
  });

  t.test("events reach each node that listens to a topic once", async (t) => {
    const [one, other] = [await driver.open(t), await driver.open(t)];
    const [a, b, c] = range(1, 3).map(() => randomUUID()) as [...[string, string, string]];
    for (const topic of [userTopic(a), userTopic(b), presenceTopic(a)])
      await other.cluster.listen(topic);
    await one.cluster.listen(userTopic(c));
    const channel: ChannelRef = { id: b, type: PERSON_CHANNEL };
    const place = { channel, sender: a, key: channelKey(channel, a) };
    await say(one, { kind: "personal", topic: userTopic(b), ...place }, "x");
    await other.cluster.barrier();
    const [first] = other.events;
    if (first?.kind !== "message") throw new Error("no message came");
    const { message } = first;
    const told = { kind: "message", message, origin: "s" } as const;
    const ended: ClusterEvent = {
      ...{ kind: "end_session", uid: a, sessionId: "s", reason: "kicked" },
    };
    const toBoth: ClusterEvent = { ...told, recipients: undefined };
    const presence: ClusterEvent = { kind: "presence", uid: a };
    const copies = [a, b, c].map((uid, at) => ({ uid, inboxSeq: at + 1 }));
    const command: ClusterEvent = {
      ...{ kind: "command", message, copies, origin: undefined },
    };
    const [ofA, ofB, ofC] = copies.map((copy) => ({
      ...command,
      copies: [copy],
    }));
    const restricted: ClusterEvent = { ...told, recipients: [a, c] };
    for (const event of [ended, toBoth, restricted, presence, command]) one.cluster.publish(event);
    await Promise.all([one.cluster.barrier(), other.cluster.barrier()]);
    const inAnyOrder = (events: readonly unknown[]) =>
      events.map((event) => JSON.stringify(event)).sort();
    const ofOther = [ended, toBoth, presence, ofA, ofB];
    t.strictSame(
      inAnyOrder(other.events.slice(1)),
      inAnyOrder([...ofOther, { ...told, recipients: [a] }]),
      "a copy names nobody else",
    );
    t.strictSame(inAnyOrder(one.events), inAnyOrder([{ ...told, recipients: [c] }, ofC]));
  });

  t.test("a topic that is let go of is begun anew", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const { hearer, teller } = await pair(t, driver, place);
      await say(teller, place, "1");
      await hearer.cluster.barrier();
      hearer.cluster.unlisten(place.topic);
      let gone = "";
      await until(async () => {
        gone = randomUUID();
        await say(teller, place, gone);
        await hearer.cluster.barrier();
        return !texts(hearer, place).includes(gone);
      }, "it is let go of");
      for (const at of range(2, 5)) await say(teller, place, `${at}`);
      await new Promise((go) => setTimeout(go, 1500));
      await hearer.cluster.listen(place.topic);
      await say(teller, place, "6");
      await hearer.cluster.barrier();
      const told = texts(hearer, place);
      t.equal(told.at(-1), "6", kind);
      t.notOk(told.some((text) => ["2", "3", "4", "5", gone].includes(text)));
      t.same(disorder(hearer), []);
    }
  });
}

/** One publication among others is lost, comes twice, or late. */
async function singles(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of KINDS) {
    t.test(`${kind}: a lost message is read in its place, once`, async (t) => {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      await say(teller, place, "no 1");
      const lost = network.dropPublication(id, "no 2");
      await say(teller, place, "no 2");
      await lost;
      await say(teller, place, "no 3");
      await hasTold(hearer, place, "no 3");
      await say(teller, place, "no 4");
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), ["no 1", "no 2", "no 3", "no 4"]);
    });

    t.test(`${kind}: what is lost and kept nowhere holds up nothing`, async (t) => {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      await say(teller, place, "no 1");
      const lost = network.dropPublication(id, "no 2");
      await say(teller, place, "no 2", PASSING);
      await lost;
      await say(teller, place, "no 3", PASSING);
      await say(teller, place, "no 4");
      await hasTold(hearer, place, "no 4");
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), ["no 1", "no 3", "no 4"]);
    });

    t.test(`${kind}: one that comes twice is told once`, async (t) => {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      const stream = producer(teller, place);
      await stream.start();
      const twice = ["no 1", "no 2", "more"].map((one) => network.duplicatePublication(id, one));
      await say(teller, place, "no 1");
      await stream.content("more");
      await say(teller, place, "no 2", PASSING);
      await Promise.all(twice);
      await say(teller, place, "no 3");
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), ["", "no 1", "no 2", "no 3"]);
      const view = { text: "more", state: "active", wrong: 0 };
      t.same(viewOf(hearer, place), view);
    });

    t.test(`${kind}: one that is overtaken is told once, in turn`, async (t) => {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      await say(teller, place, "no 1");
      const late = network.delayPublication(id, "no 2");
      await say(teller, place, "no 2");
      await late.arrived;
      await say(teller, place, "no 3");
      await hasTold(hearer, place, "no 3");
      late.release();
      await say(teller, place, "no 4");
      await hasTold(hearer, place, "no 4");
      await hearer.cluster.barrier();
      t.same(texts(hearer, place), ["no 1", "no 2", "no 3", "no 4"]);
    });

    // On one server nothing overtakes, and the first one heard of a personal channel is taken for
    // the first.
    if (kind === "group" || driver.tellsApart)
      t.test(`${kind}: the first one of all is overtaken`, async (t) => {
        const place = newPlace(kind);
        const { hearer, teller, id } = await pair(t, driver, place);
        const late = network.delayPublication(id, "no 1");
        await say(teller, place, "no 1");
        await late.arrived;
        await say(teller, place, "no 2");
        await hasTold(hearer, place, "no 2");
        late.release();
        await say(teller, place, "no 3");
        await hasTold(hearer, place, "no 3");
        t.same(texts(hearer, place), ["no 1", "no 2", "no 3"]);
      });

    t.test(`${kind}: a lost piece of a stream is read`, async (t) => {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      const stream = producer(teller, place);
      await stream.start();
      await stream.content("one ");
      const lost = network.dropPublication(id, "two ");
      await stream.content("two ");
      await lost;
      await stream.content("three ");
      const isRead = () => viewOf(hearer, place).text.endsWith("three ");
      await until(isRead, "it is read");
      for (const piece of ["four ", "five"]) await stream.content(piece);
      await stream.end();
      await until(() => viewOf(hearer, place).state === "closed", "it is over");
      const text = "one two three four five";
      t.same(viewOf(hearer, place), { text, state: "closed", wrong: 0 });
    });
  }

  if (!driver.tellsApart) return;

  t.test("a node dies before it told what it stored", async (t) => {
    const place = newPlace("personal");
    const { hearer, teller, id } = await pair(t, driver, place);
    await say(teller, place, "no 1");
    await hasTold(hearer, place, "no 1");
    const dying = await driver.open(t);
    const { nodeId } = dying.cluster;
    const died = network.dropCommand(nodeId, ["no 2", `{u:${place.channel.id}}`]);
    await t.rejects(say(dying, place, "no 2"), { code: "unavailable" });
    await died;
    await say(teller, place, "no 3");
    await hasTold(hearer, place, "no 3");
    t.same(texts(hearer, place), ["no 1", "no 2", "no 3"], id);
  });
}

async function barriers(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test("a barrier waits for what was published before it", async (t) => {
    const [group, personal] = KINDS.map(newPlace) as [Place, Place];
    const { hearer, teller, id } = await pair(t, driver, group);
    await hearer.cluster.listen(personal.topic);
    const uid = personal.channel.id;
    const told = () => [
      ...texts(hearer, group),
      ...texts(hearer, personal),
      ...hearer.events.filter(({ kind }) => kind === "credential"),
    ];
    for (const at of range(1, 5)) {
      const before = told().length;
      const pass = network.holdPublications(id);
      await say(teller, group, `group ${at}`);
      await say(teller, personal, `personal ${at}`);
      await teller.cluster.announce([{ kind: "credential", uid }]);
      let isOver = false;
      const barrier = hearer.cluster.barrier().then(() => {
        isOver = true;
        return told().length;
      });
      await roundTrips(hearer);
      t.notOk(isOver, "nothing has come");
      t.equal(told().length, before);
      pass();
      t.equal(await barrier, before + 3, "with it everything has");
    }
  });

  for (const how of ["barrier", "recovery"] as const)
    t.test(`a ${how} waits for what was missed`, async (t) => {
      const places = range(1, 150).map((at) => newPlace(KINDS[at % 2] ?? "group"));
      const [first] = places as [Place];
      const { hearer, teller, id } = await pair(t, driver, first);
      const concerns = (topic: string) => topic === first.topic;
      for (const { topic } of places) await hearer.cluster.listen(topic);
      t.equal(hearer.cluster.recovery(concerns), undefined, "nothing is missed");
      const comeBack = network.blockSubscriptions(id);
      await Promise.all(places.map((place) => say(teller, place, "missed")));
      await until(() => hearer.cluster.recovery(concerns) !== undefined, "the loss is noticed");
      const waited =
        how === "barrier" ? hearer.cluster.barrier() : hearer.cluster.recovery(concerns);
      comeBack();
      await waited;
      t.same(
        places.filter((place) => texts(hearer, place).length !== 1),
        [],
      );
    });

  t.test("who reads nothing of a lost topic waits for nothing", async (t) => {
    const place = newPlace("group");
    const { hearer, id } = await pair(t, driver, place);
    const comeBack = network.blockSubscriptions(id);
    const other = (topic: string) => topic === groupTopic("another");
    const every = () => true;
    await until(() => hearer.cluster.recovery(every) !== undefined, "lost");
    t.equal(hearer.cluster.recovery(other), undefined);
    comeBack();
    await hearer.cluster.barrier();
    t.equal(hearer.cluster.recovery(every), undefined);
  });
}

async function cuts(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test("what is sent during cuts is told once and in order", async (t) => {
    const [group, personal] = KINDS.map(newPlace) as [Place, Place];
    const { hearer, teller, id } = await pair(t, driver, group);
    await hearer.cluster.listen(personal.topic);
    let sent = 0;
    for (const _ of range(1, 4)) {
      const sending = range(1, 40).map((at) => say(teller, at % 2 ? group : personal, `${at}`));
      network.cutSubscriptions(id);
      await Promise.all(sending);
      for (const at of range(1, 10)) await say(teller, at % 2 ? group : personal, `${at}`);
      sent += 50;
      await hearer.cluster.barrier();
    }
    t.same(disorder(hearer), []);
    for (const { key } of [group, personal]) t.same(seqsOf(hearer, key), range(1, sent / 2), key);
  });

  t.test("more than a page of messages is told", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      await say(teller, place, "first");
      await hearer.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      const all = range(1, 1100).map((at) => say(teller, place, `${at}`));
      await Promise.all(all);
      comeBack();
      await say(teller, place, "last");
      await hasTold(hearer, place, "last");
      t.same(disorder(hearer), []);
      t.equal(texts(hearer, place).length, 1102, kind);
    }
  });

  t.test("streams that go on, end and begin unheard are told whole", async (t) => {
    for (const kind of KINDS) {
      const place = newPlace(kind);
      const { hearer, teller, id } = await pair(t, driver, place);
      const [first, next] = ["s1", "s2"].map((no) => producer(teller, place, no));
      await first?.start();
      await first?.content("a");
      await hearer.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      for (const piece of ["b", "c"]) await first?.content(piece);
      await first?.end();
      await next?.start();
      await next?.content("d");
      comeBack();
      await until(() => isWhole(hearer), "back");
      await next?.content("e");
      await hearer.cluster.barrier();
      const ended = { text: "abc", state: "closed", wrong: 0 };
      t.same(viewOf(hearer, place, "s1"), ended, kind);
      const active = { text: "de", state: "active", wrong: 0 };
      t.same(viewOf(hearer, place, "s2"), active, kind);
      t.same(seqsOf(hearer, place.key), [1, 2]);
    }
  });

  t.test("the listener is told which topics it missed events of", async (t) => {
    const place = newPlace("group");
    const { hearer, id } = await pair(t, driver, place);
    const [user, seen] = [userTopic(randomUUID()), presenceTopic(randomUUID())];
    for (const topic of [user, seen]) await hearer.cluster.listen(topic);
    network.cutSubscriptions(id);
    const missed = () => hearer.events.flatMap((one) => (one.kind === "missed" ? one.topic : []));
    await until(() => missed().length === 2, "it is told");
    t.same(new Set(missed()), new Set([user, seen]));
  });

  t.test("a conversation that was changed is told when its user is judged", async (t) => {
    const place = newPlace("personal");
    const { hearer, teller, id } = await pair(t, driver, place);
    const uid = place.channel.id;
    const conversation = (unread: number): ClusterEvent => ({
      ...{ kind: "conversation", uid, change: "read", origin: undefined },
      conversation: {
        channel: { id: place.sender, type: PERSON_CHANNEL },
        ...{ headSeq: 9, readSeq: 9 - unread, unread, deletedSeq: 0 },
        ...{ changedAtMs: 1, last: undefined },
      },
    });
    const unread = () =>
      hearer.events.flatMap((one) => (one.kind === "conversation" ? one.conversation.unread : []));
    const answer = network.holdReplies(id); // the user is not judged before
    network.cutSubscriptions(id);
    const reached = async (event: ClusterEvent, text: string) => {
      const passed = network.publicationPassed(id, text);
      let isThere = false;
      void passed.then(() => {
        isThere = true;
      });
      await until(async () => {
        await teller.cluster.announce([event]);
        return isThere;
      }, "it reaches the node");
    };
    await reached(conversation(3), place.sender);
    await teller.cluster.announce([conversation(2)]);
    await reached({ kind: "credential", uid }, "credential");
    t.same(unread(), [], "whose sessions may go on is not known");
    answer();
    await hearer.cluster.barrier();
    t.equal(unread().at(-1), 2, "how it stands now");
    await teller.cluster.announce([conversation(1)]);
    await hearer.cluster.barrier();
    t.equal(unread().at(-1), 1);
  });
}

/**
 * The connection on which a node listens carries nothing any more; what it missed is the last that
 * happens.
 */
async function silence(t: Test, driver: DeliveryDriver): Promise<void> {
  const LAST: Readonly<Record<string, (node: DeliveryNode, place: Place) => Promise<unknown>>> = {
    message: (node, place) => say(node, place, "last"),
    "end of a stream": (node, place) => producer(node, place).end(),
    removal: ({ store }, { channel }) => store.removeSubscribers(channel, ["gone"], "permanent"),
  };
  for (const [what, last] of Object.entries(LAST))
    for (const kind of KINDS) {
      if (what === "removal" && kind === "personal") continue;
      t.test(`${kind}: a last ${what} that is lost is noticed`, async (t) => {
        const place = newPlace(kind);
        const judged = judgeOf(place);
        const { hearer, teller, id } = await pair(t, driver, place, judged.judge);
        judged.node = hearer;
        if (kind === "group")
          await teller.store.createChannel(groupInfo(place.channel.id), ["gone"]);
        const stream = producer(teller, place);
        await stream.start();
        await stream.content("x");
        await hearer.cluster.barrier();
        driver.network.silenceSubscriptions(id);
        const stalls = measureStalls(t);
        const since = performance.now();
        await last(teller, place);
        const isTold = () =>
          what === "message"
            ? texts(hearer, place).includes("last")
            : what === "removal"
              ? judged.groups.length > 0
              : viewOf(hearer, place).state === "closed";
        await until(isTold, "it is noticed");
        const tookMs = performance.now() - since;
        t.ok(tookMs < NOTICED_MS + 10 * stalls.totalMs(), `${tookMs} ms`);
        t.same(disorder(hearer), []);
      });
    }
}

/** After a fail-over to a replica that was behind numbers are given out again. */
async function lostHistory(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of KINDS)
    for (const again of [1, 2, 3])
      for (const isCut of [true, false])
        t.test(`${kind}: 2 are lost, ${again} sent, ${isCut ? "unheard" : "heard"}`, async (t) => {
          const place = newPlace(kind);
          const { hearer, teller, id } = await pair(t, driver, place);
          for (const at of range(1, 5)) await say(teller, place, `${at}`);
          await hearer.cluster.barrier();
          const comeBack = isCut ? network.blockSubscriptions(id) : () => {};
          await driver.forget(teller, place.key, {
            publications: 2,
            kept: true,
          });
          const later = range(1, again).map((at) => `later ${at}`);
          for (const text of later) await say(teller, place, text);
          comeBack();
          await hasTold(hearer, place, `later ${again}`);
          await say(teller, place, "last");
          await hasTold(hearer, place, "last");
          const told = [...range(1, 5).map(String), ...later, "last"];
          t.same(texts(hearer, place), told);
          t.same(disorder(hearer), []);
        });
  if (driver.tellsApart) await lostAndOvertaken(t, driver);
  for (const kind of KINDS) await lostAhead(t, driver, kind); // last: buckets go on with ids of a clock ahead
}

/** What has the number behind the lost ones' comes before what has theirs. */
async function lostAndOvertaken(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const lost of [1, 2])
    for (const isKept of [true, false])
      for (const first of ["message", "unstored message", "stream"] as const)
        t.test(
          `personal: ${lost} ${isKept ? "" : "unstored "}are lost, a ${first} overtakes`,
          async (t) => {
            const place = newPlace("personal");
            const { hearer, teller, id } = await pair(t, driver, place);
            await say(teller, place, "1");
            const early = range(1, lost).map((at) => `lost ${at}`);
            for (const text of early) await say(teller, place, text, isKept ? {} : PASSING);
            await hasTold(hearer, place, `lost ${lost}`);
            const publications = lost;
            const forgotten = { publications, kept: isKept };
            await driver.forget(teller, place.key, forgotten);
            const later = range(1, lost).map((at) => `later ${at}`);
            const late = later.map((text) => network.delayPublication(id, text));
            for (const text of later) await say(teller, place, text);
            const overtaking = first === "stream" ? "" : "overtaking";
            if (first === "stream") await producer(teller, place).start();
            else
              await say(
                ...([teller, place, overtaking] as const),
                first === "message" ? {} : PASSING,
              );
            await hasTold(hearer, place, overtaking);
            for (const { arrived, release } of late) {
              await arrived;
              release();
            }
            await say(teller, place, "last");
            await hasTold(hearer, place, "last");
            const told = ["1", ...early, ...later, overtaking, "last"];
            t.same(texts(hearer, place), told);
            t.same(disorder(hearer), []);
          },
        );
}

/**
 * Ids of lost messages may be greater than those of new ones with their numbers, where the clock of
 * the node that sent them is ahead; and the messages of other channels may move the counter of ids
 * past them before anybody looks. Ids need not grow here.
 */
async function lostAhead(t: Test, driver: DeliveryDriver, kind: Place["kind"]): Promise<void> {
  const { network } = driver;
  const scene = async (t: Test) => {
    const [place, elsewhere] = [newPlace(kind), newPlace("group")];
    const found = await pair(t, driver, place);
    const ahead = await driver.open(t, { aheadMs: 20_000 });
    return { ...found, place, elsewhere, ahead };
  };

  for (const lost of [1, 2, 12])
    for (const isCut of [true, false])
      t.test(
        `${kind}: ${lost} by a clock ahead are lost, ${isCut ? "unheard" : "heard"}`,
        async (t) => {
          const { place, elsewhere, hearer, teller, ahead, id } = await scene(t);
          await say(teller, place, "1");
          const early = range(1, lost).map((at) => `lost ${at}`);
          for (const text of early) await say(ahead, place, text);
          await hearer.cluster.barrier();
          const release = isCut ? network.blockSubscriptions(id) : network.holdPublications(id);
          const publications = lost;
          await driver.forget(teller, place.key, { publications, kept: true });
          await say(teller, place, "later");
          await say(ahead, elsewhere, "the counter is past the lost ones");
          release();
          await hasTold(hearer, place, "later");
          await say(teller, place, "last");
          await hasTold(hearer, place, "last");
          t.same(texts(hearer, place), ["1", ...early, "later", "last"]);
        },
      );

  t.test(`${kind}: an id of another channel is lost`, async (t) => {
    const elsewhere = newPlace("group");
    const ahead = await driver.open(t, { aheadMs: 20_000 });
    await say(ahead, elsewhere, "lost");
    const place = newPlace(kind);
    const { hearer, teller, id } = await pair(t, driver, place);
    const release = network.holdPublications(id);
    const forgotten = { publications: 1, kept: true } as const;
    await driver.forget(teller, elsewhere.key, forgotten);
    await say(teller, place, "1");
    await say(ahead, elsewhere, "the counter is past the lost one");
    release();
    await hasTold(hearer, place, "1");
    await say(teller, place, "2");
    await hasTold(hearer, place, "2");
    t.same(texts(hearer, place), ["1", "2"]);
  });

  t.test(`${kind}: one that was not stored is lost`, async (t) => {
    const { place, elsewhere, hearer, teller, ahead, id } = await scene(t);
    await say(teller, place, "1");
    await hasTold(hearer, place, "1"); // a node that reads a channel leaves out what is not stored
    await say(ahead, place, "passing", PASSING);
    await hearer.cluster.barrier();
    const release = network.holdPublications(id);
    const forgotten = { publications: 1, kept: false } as const;
    await driver.forget(teller, place.key, forgotten);
    await say(teller, place, "later");
    await say(ahead, elsewhere, "the counter is past the lost one");
    release();
    await hasTold(hearer, place, "later");
    await say(teller, place, "last");
    await hasTold(hearer, place, "last");
    t.same(texts(hearer, place), ["1", "passing", "later", "last"]);
  });

  for (const isEmptied of [true, false])
    t.test(
      `${kind}: ${isEmptied ? "all" : "some"} that were told are gone for their time is over, and none is lost`,
      async (t) => {
        const { place, hearer, teller, id } = await scene(t);
        const expiring = { expireS: 1 };
        await say(teller, place, "1", isEmptied ? expiring : {});
        await say(teller, place, "2", expiring);
        await say(teller, place, "3", isEmptied ? expiring : {});
        await say(teller, place, "4", expiring);
        await say(teller, place, "passing", PASSING);
        await hearer.cluster.barrier();
        const gone = isEmptied ? 4 : 2;
        let swept = 0;
        await until(async () => {
          swept += await driver.sweep(teller);
          return swept === gone;
        }, "they are gone");
        for (const text of ["5", "6"]) {
          const comeBack = network.blockSubscriptions(id);
          await say(teller, place, text);
          comeBack();
          await hasTold(hearer, place, text);
        }
        t.same(texts(hearer, place), ["1", "2", "3", "4", "passing", "5", "6"]);
        t.same(disorder(hearer), []);
      },
    );
}

/** Nothing that is sent after a member is removed is told before that. */
async function removals(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  /** A group of these, in which something was said before. */
  async function scene(t: Test, members: readonly string[]) {
    const place = newPlace("group");
    const judged = judgeOf(place);
    const { hearer, teller, id } = await pair(t, driver, place, judged.judge);
    judged.node = hearer;
    const { channel } = place;
    await teller.store.createChannel(groupInfo(channel.id), members);
    const remove = (uid: string) => teller.store.removeSubscribers(channel, [uid], "permanent");
    await say(teller, place, "before");
    await hearer.cluster.barrier();
    return { place, hearer, teller, id, judged, remove };
  }

  /** What was told of the group, in order. */
  const shown = ({ events }: DeliveryNode, { channel }: Place) =>
    events.flatMap((one) => {
      if (one.kind === "removal" && one.channelId === channel.id) return [`without ${one.uids}`];
      if (one.kind !== "message" || one.message.channel.id !== channel.id) return [];
      return [JSON.parse(Buffer.from(one.message.payload).toString()).content];
    });

  t.test("a removal comes in turn with the messages", async (t) => {
    const { place, hearer, teller, remove } = await scene(t, ["ann", "bob"]);
    await remove("ann");
    await say(teller, place, "behind");
    await hearer.cluster.barrier();
    t.same(shown(hearer, place), ["before", "without ann", "behind"]);
  });

  t.test("a replaced list is judged in turn", async (t) => {
    const { place, hearer, teller, judged } = await scene(t, ["ann", "bob"]);
    const replaced = { ...PERMANENT, reset: true };
    await teller.store.addSubscribers(place.channel, ["bob"], replaced);
    await say(teller, place, "behind");
    await hasTold(hearer, place, "behind");
    t.ok(judged.groups.includes("before"), "before what came behind it");
  });

  t.test("one that is lost is judged before anything behind it", async (t) => {
    const { place, hearer, teller, id, judged, remove } = await scene(t, ["ann"]);
    const lost = network.dropPublication(id, "ann");
    await remove("ann");
    await lost;
    await say(teller, place, "behind");
    await hasTold(hearer, place, "behind");
    t.ok(judged.groups.includes("before"), "before what came behind it");
  });

  t.test("one that comes twice does no harm", async (t) => {
    const { place, hearer, teller, id, remove } = await scene(t, ["ann"]);
    const twice = network.duplicatePublication(id, "ann");
    await remove("ann");
    await twice;
    await say(teller, place, "behind");
    await hasTold(hearer, place, "behind");
    await hearer.cluster.barrier();
    t.same(shown(hearer, place), ["before", "without ann", "behind"]);
  });

  const forgetOne = { publications: 1, kept: false } as const;

  t.test("one with the number of a lost one is judged at once", async (t) => {
    const { place, hearer, teller, judged, remove } = await scene(t, ["ann", "bob"]);
    await remove("ann");
    await hearer.cluster.barrier();
    await driver.forget(teller, place.key, forgetOne);
    await remove("bob");
    await say(teller, place, "behind");
    await hasTold(hearer, place, "behind");
    const isTold = shown(hearer, place).includes("without bob");
    t.ok(isTold || judged.groups.includes("before"), "before what came behind it");
  });

  t.test("so is one that came while the subscription was lost", async (t) => {
    const removal = await scene(t, ["ann", "bob"]);
    const ended = await scene(t, ["ann", "bob"]);
    const stream = producer(ended.teller, ended.place);
    await stream.start();
    await new Promise((go) => setTimeout(go, 11_000)); // what was said is too old to be lost by a fail-over
    for (const [what, { place, hearer, teller, id, judged, remove }] of [
      ["a removal", removal],
      ["the end of a stream", ended],
    ] as const) {
      if (what === "a removal") await remove("ann");
      else await stream.end();
      await hearer.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      await driver.forget(teller, place.key, forgetOne);
      await remove("bob");
      comeBack();
      await hearer.cluster.barrier();
      t.ok(judged.groups.length > 0, `it has the number of ${what}`);
    }
  });

  t.test("what was missed is told after its group is judged", async (t) => {
    const { place, hearer, teller, id, judged, remove } = await scene(t, ["ann"]);
    const comeBack = network.blockSubscriptions(id);
    await remove("ann");
    for (const at of range(1, 3)) await say(teller, place, `${at}`);
    comeBack();
    await hearer.cluster.barrier();
    t.ok(judged.groups.includes("before"));
    t.same(texts(hearer, place), ["before", "1", "2", "3"]);
  });
}

/**
 * What a node reads when its subscriptions are back grows with the topics in which something
 * happened.
 */
async function resync(t: Test, driver: DeliveryDriver): Promise<void> {
  const TOPICS = 300;
  const { network } = driver;
  for (const changed of [0, 3, 30])
    t.test(`${changed} of ${TOPICS} groups changed`, async (t) => {
      const prefix = `r${changed}`; // no message was ever sent there
      const [hearer, teller] = [await driver.open(t, { prefix }), await driver.open(t, { prefix })];
      const places = range(1, TOPICS).map(() => newPlace("group"));
      for (const { topic } of places) await hearer.cluster.listen(topic);
      const comeBack = network.blockSubscriptions(hearer.cluster.nodeId);
      const busy = places.slice(0, changed);
      for (const place of busy) await say(teller, place, "missed");
      for (const server of network.servers) await server.client().call("CONFIG", "RESETSTAT");
      const since = performance.now();
      comeBack();
      await hearer.cluster.barrier();
      const beats = Math.ceil((performance.now() - since) / 100);
      for (const place of busy) t.same(texts(hearer, place), ["missed"]);
      const numbers = await calls(driver, "hget");
      const scripts = await calls(driver, "evalsha");
      t.ok(numbers >= TOPICS, "a number of each");
      t.ok(numbers <= TOPICS + 2 * scripts, `once: ${numbers}`); // a heartbeat asks for two
      t.ok(scripts <= 4 * changed + beats, `${scripts} scripts, ${beats} beats`);
    });
}

/**
 * How often clients and scripts ran the command since the statistics were reset, at all servers.
 */
async function calls({ network }: DeliveryDriver, command: string): Promise<number> {
  let count = 0;
  for (const server of network.servers) {
    const stats = await server.client().info("commandstats");
    const found = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
    count += Number(found?.[1] ?? 0);
  }
  return count;
}

/**
 * Whatever happens, in any order: each message once, in order, streams without a gap; and all of it
 * in the end.
 */
async function courses(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const course of range(1, COURSES)) {
    const seed = SEED * 1000 + course;
    t.test(`seed ${seed}`, async (t) => {
      const random = new Random(seed);
      const places = [...KINDS, ...KINDS].map(newPlace) as [Place, ...Place[]];
      const { hearer, teller, id } = await pair(t, driver, places[0]);
      const other = await driver.open(t);
      for (const { topic } of places) await hearer.cluster.listen(topic);
      const streams = places.map((place) => producer(teller, place));
      const texted = new Map<Place, string>(places.map((place) => [place, ""]));
      for (const stream of streams) await stream.start();
      let late: (() => void) | undefined;
      for (const at of range(1, 80)) {
        const which = random.below(places.length);
        const place = places[which] as Place;
        const text = `<${seed} ${at}>`;
        const fault = random.below(10);
        if (fault === 0) void network.dropPublication(id, text);
        if (fault === 1) void network.duplicatePublication(id, text);
        if (fault === 2) {
          late?.();
          late = network.delayPublication(id, text).release;
        }
        if (fault === 3 && random.flip()) network.cutSubscriptions(id);
        if (random.below(3) > 0) await say(random.flip() ? teller : other, place, text);
        else {
          await streams[which]?.content(text);
          texted.set(place, `${texted.get(place)}${text}`);
        }
      }
      late?.();
      for (const [at, place] of places.entries()) {
        await streams[at]?.end();
        await say(teller, place, "last");
        await hasTold(hearer, place, "last");
      }
      await hearer.cluster.barrier();
      t.same(disorder(hearer), []);
      for (const place of places) {
        const head = await teller.store.headSeq(place.key);
        t.same(seqsOf(hearer, place.key), range(1, head), place.kind);
        const view = { text: texted.get(place), state: "closed", wrong: 0 };
        t.same(viewOf(hearer, place), view);
      }
    });
  }
}

/** Of the channel's stored messages, in the order in which they were told. */
function seqsOf({ events }: DeliveryNode, key: ChannelKey): readonly number[] {
  return events.flatMap((one) =>
    one.kind === "message" && one.message.key === key ? one.message.messageSeq : [],
  );
}
