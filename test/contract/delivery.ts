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
  CHAT_KINDS,
  type Chat,
  type DeliveryDriver,
  type DeliveryNode,
  deliveredTexts,
  newChat,
  orderErrors,
  producer,
  range,
  recordingJudge,
  roundTrips,
  sendText,
  UNSTORED,
  until,
  viewOf,
} from "./delivery-fixture.ts";
import { group as groupInfo, PERMANENT } from "./store-fixture.ts";

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
  chat: Chat,
  judge?: GroupJudge,
): Promise<{ subscriber: DeliveryNode; publisher: DeliveryNode; id: string }> {
  const subscriber = await open(t, judge && { judge });
  const publisher = await open(t);
  await subscriber.cluster.listen(chat.topic);
  return { subscriber, publisher, id: subscriber.cluster.nodeId };
}

const isWhole = ({ cluster }: DeliveryNode): boolean => {
  const recovery = cluster.recovery(() => true);
  recovery?.catch(() => {}); // it is asked for again
  return recovery === undefined;
};
const untilDelivered = (node: DeliveryNode, chat: Chat, text: string) =>
  until(() => deliveredTexts(node, chat).includes(text), `${text} is told`);

async function published(t: Test, driver: DeliveryDriver): Promise<void> {
  t.test("messages of many senders come in the store's order", async (t) => {
    const chat = newChat("group");
    const { subscriber, publisher } = await pair(t, driver, chat);
    const third = await driver.open(t);
    await third.cluster.listen(chat.topic);
    const all = await Promise.all(
      range(1, 100).map(async (at) => {
        const { messageSeq } = await sendText(at % 2 ? publisher : subscriber, chat, `${at}`);
        return { at, messageSeq };
      }),
    );
    all.sort((a, b) => a.messageSeq - b.messageSeq);
    const ordered = all.map(({ at }) => `${at}`);
    for (const node of [subscriber, third]) {
      await node.cluster.barrier();
      t.same(deliveredTexts(node, chat), ordered);
    }
    t.same(publisher.events, [], "a node that does not listen hears nothing");
  });

  t.test("two users of one node hear a personal message once", async (t) => {
    const chat = newChat("personal");
    const { subscriber, publisher } = await pair(t, driver, chat);
    await subscriber.cluster.listen(userTopic(chat.sender));
    for (const at of range(1, 20)) await sendText(publisher, chat, `${at}`);
    await subscriber.cluster.barrier();
    t.same(deliveredTexts(subscriber, chat), range(1, 20).map(String));
  });

  t.test("what is not stored comes in its turn", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher } = await pair(t, driver, chat);
      for (const at of range(1, 6))
        await sendText(publisher, chat, `${at}`, at % 2 ? UNSTORED : {});
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), range(1, 6).map(String), kind);
    }
  });

  t.test("who listens later hears what comes later", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const [subscriber, publisher] = [await driver.open(t), await driver.open(t)];
      await sendText(publisher, chat, "before");
      await new Promise((go) => setTimeout(go, 1500)); // a personal one of the last second may come too, says docs/cluster.md
      await subscriber.cluster.listen(chat.topic);
      await sendText(publisher, chat, "later");
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), ["later"], kind);
    }
  });

  t.test("streams come in turn with messages", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher } = await pair(t, driver, chat);
      const stream = producer(publisher, chat);
      await stream.start();
      await stream.content("one ");
      await sendText(publisher, chat, "amid");
      await stream.content("two");
      await stream.end();
      await subscriber.cluster.barrier();
      const order = subscriber.events.flatMap((one) => {
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
    const chat = { channel, sender: a, key: channelKey(channel, a) };
    await sendText(one, { kind: "personal", topic: userTopic(b), ...chat }, "x");
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
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher } = await pair(t, driver, chat);
      await sendText(publisher, chat, "1");
      await subscriber.cluster.barrier();
      subscriber.cluster.unlisten(chat.topic);
      let gone = "";
      await until(async () => {
        gone = randomUUID();
        await sendText(publisher, chat, gone);
        await subscriber.cluster.barrier();
        return !deliveredTexts(subscriber, chat).includes(gone);
      }, "it is let go of");
      for (const at of range(2, 5)) await sendText(publisher, chat, `${at}`);
      await new Promise((go) => setTimeout(go, 1500));
      await subscriber.cluster.listen(chat.topic);
      await sendText(publisher, chat, "6");
      await subscriber.cluster.barrier();
      const told = deliveredTexts(subscriber, chat);
      t.equal(told.at(-1), "6", kind);
      t.notOk(told.some((text) => ["2", "3", "4", "5", gone].includes(text)));
      t.same(orderErrors(subscriber), []);
    }
  });
}

/** One publication among others is lost, comes twice, or late. */
async function singles(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of CHAT_KINDS) {
    t.test(`${kind}: a lost message is read in its place, once`, async (t) => {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      await sendText(publisher, chat, "no 1");
      const lost = network.dropPublication(id, "no 2");
      await sendText(publisher, chat, "no 2");
      await lost;
      await sendText(publisher, chat, "no 3");
      await untilDelivered(subscriber, chat, "no 3");
      await sendText(publisher, chat, "no 4");
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), ["no 1", "no 2", "no 3", "no 4"]);
    });

    t.test(`${kind}: what is lost and kept nowhere holds up nothing`, async (t) => {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      await sendText(publisher, chat, "no 1");
      const lost = network.dropPublication(id, "no 2");
      await sendText(publisher, chat, "no 2", UNSTORED);
      await lost;
      await sendText(publisher, chat, "no 3", UNSTORED);
      await sendText(publisher, chat, "no 4");
      await untilDelivered(subscriber, chat, "no 4");
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), ["no 1", "no 3", "no 4"]);
    });

    t.test(`${kind}: one that comes twice is told once`, async (t) => {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      const stream = producer(publisher, chat);
      await stream.start();
      const twice = ["no 1", "no 2", "more"].map((one) => network.duplicatePublication(id, one));
      await sendText(publisher, chat, "no 1");
      await stream.content("more");
      await sendText(publisher, chat, "no 2", UNSTORED);
      await Promise.all(twice);
      await sendText(publisher, chat, "no 3");
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), ["", "no 1", "no 2", "no 3"]);
      const view = { text: "more", state: "active", wrong: 0 };
      t.same(viewOf(subscriber, chat), view);
    });

    t.test(`${kind}: one that is overtaken is told once, in turn`, async (t) => {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      await sendText(publisher, chat, "no 1");
      const late = network.delayPublication(id, "no 2");
      await sendText(publisher, chat, "no 2");
      await late.arrived;
      await sendText(publisher, chat, "no 3");
      await untilDelivered(subscriber, chat, "no 3");
      late.release();
      await sendText(publisher, chat, "no 4");
      await untilDelivered(subscriber, chat, "no 4");
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), ["no 1", "no 2", "no 3", "no 4"]);
    });

    // On one server nothing overtakes, and the first one heard of a personal channel is taken for
    // the first.
    if (kind === "group" || driver.publishesPerUser)
      t.test(`${kind}: the first one of all is overtaken`, async (t) => {
        const chat = newChat(kind);
        const { subscriber, publisher, id } = await pair(t, driver, chat);
        const late = network.delayPublication(id, "no 1");
        await sendText(publisher, chat, "no 1");
        await late.arrived;
        await sendText(publisher, chat, "no 2");
        await untilDelivered(subscriber, chat, "no 2");
        late.release();
        await sendText(publisher, chat, "no 3");
        await untilDelivered(subscriber, chat, "no 3");
        t.same(deliveredTexts(subscriber, chat), ["no 1", "no 2", "no 3"]);
      });

    t.test(`${kind}: a lost piece of a stream is read`, async (t) => {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      const stream = producer(publisher, chat);
      await stream.start();
      await stream.content("one ");
      const lost = network.dropPublication(id, "two ");
      await stream.content("two ");
      await lost;
      await stream.content("three ");
      const isRead = () => viewOf(subscriber, chat).text.endsWith("three ");
      await until(isRead, "it is read");
      for (const piece of ["four ", "five"]) await stream.content(piece);
      await stream.end();
      await until(() => viewOf(subscriber, chat).state === "closed", "it is over");
      const text = "one two three four five";
      t.same(viewOf(subscriber, chat), { text, state: "closed", wrong: 0 });
    });
  }

  if (!driver.publishesPerUser) return;

  t.test("a node dies before it told what it stored", async (t) => {
    const chat = newChat("personal");
    const { subscriber, publisher, id } = await pair(t, driver, chat);
    await sendText(publisher, chat, "no 1");
    await untilDelivered(subscriber, chat, "no 1");
    const dying = await driver.open(t);
    const { nodeId } = dying.cluster;
    const died = network.dropCommand(nodeId, ["no 2", `{u:${chat.channel.id}}`]);
    await t.rejects(sendText(dying, chat, "no 2"), { code: "unavailable" });
    await died;
    await sendText(publisher, chat, "no 3");
    await untilDelivered(subscriber, chat, "no 3");
    t.same(deliveredTexts(subscriber, chat), ["no 1", "no 2", "no 3"], id);
  });
}

async function barriers(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test("a barrier waits for what was published before it", async (t) => {
    const [group, personal] = CHAT_KINDS.map(newChat) as [Chat, Chat];
    const { subscriber, publisher, id } = await pair(t, driver, group);
    await subscriber.cluster.listen(personal.topic);
    const uid = personal.channel.id;
    const told = () => [
      ...deliveredTexts(subscriber, group),
      ...deliveredTexts(subscriber, personal),
      ...subscriber.events.filter(({ kind }) => kind === "credential"),
    ];
    for (const at of range(1, 5)) {
      const before = told().length;
      const pass = network.holdPublications(id);
      await sendText(publisher, group, `group ${at}`);
      await sendText(publisher, personal, `personal ${at}`);
      await publisher.cluster.announce([{ kind: "credential", uid }]);
      let isOver = false;
      const barrier = subscriber.cluster.barrier().then(() => {
        isOver = true;
        return told().length;
      });
      await roundTrips(subscriber);
      t.notOk(isOver, "nothing has come");
      t.equal(told().length, before);
      pass();
      t.equal(await barrier, before + 3, "with it everything has");
    }
  });

  for (const how of ["barrier", "recovery"] as const)
    t.test(`a ${how} waits for what was missed`, async (t) => {
      const chats = range(1, 150).map((at) => newChat(CHAT_KINDS[at % 2] ?? "group"));
      const [first] = chats as [Chat];
      const { subscriber, publisher, id } = await pair(t, driver, first);
      const concerns = (topic: string) => topic === first.topic;
      for (const { topic } of chats) await subscriber.cluster.listen(topic);
      t.equal(subscriber.cluster.recovery(concerns), undefined, "nothing is missed");
      const comeBack = network.blockSubscriptions(id);
      await Promise.all(chats.map((chat) => sendText(publisher, chat, "missed")));
      await until(() => subscriber.cluster.recovery(concerns) !== undefined, "the loss is noticed");
      const waited =
        how === "barrier" ? subscriber.cluster.barrier() : subscriber.cluster.recovery(concerns);
      comeBack();
      await waited;
      t.same(
        chats.filter((chat) => deliveredTexts(subscriber, chat).length !== 1),
        [],
      );
    });

  t.test("who reads nothing of a lost topic waits for nothing", async (t) => {
    const chat = newChat("group");
    const { subscriber, id } = await pair(t, driver, chat);
    const comeBack = network.blockSubscriptions(id);
    const other = (topic: string) => topic === groupTopic("another");
    const every = () => true;
    await until(() => subscriber.cluster.recovery(every) !== undefined, "lost");
    t.equal(subscriber.cluster.recovery(other), undefined);
    comeBack();
    await subscriber.cluster.barrier();
    t.equal(subscriber.cluster.recovery(every), undefined);
  });
}

async function cuts(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test("what is sent during cuts is told once and in order", async (t) => {
    const [group, personal] = CHAT_KINDS.map(newChat) as [Chat, Chat];
    const { subscriber, publisher, id } = await pair(t, driver, group);
    await subscriber.cluster.listen(personal.topic);
    let sent = 0;
    for (const _ of range(1, 4)) {
      const sending = range(1, 40).map((at) =>
        sendText(publisher, at % 2 ? group : personal, `${at}`),
      );
      network.cutSubscriptions(id);
      await Promise.all(sending);
      for (const at of range(1, 10)) await sendText(publisher, at % 2 ? group : personal, `${at}`);
      sent += 50;
      await subscriber.cluster.barrier();
    }
    t.same(orderErrors(subscriber), []);
    for (const { key } of [group, personal])
      t.same(seqsOf(subscriber, key), range(1, sent / 2), key);
  });

  t.test("more than a page of messages is told", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      await sendText(publisher, chat, "first");
      await subscriber.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      const all = range(1, 1100).map((at) => sendText(publisher, chat, `${at}`));
      await Promise.all(all);
      comeBack();
      await sendText(publisher, chat, "last");
      await untilDelivered(subscriber, chat, "last");
      t.same(orderErrors(subscriber), []);
      t.equal(deliveredTexts(subscriber, chat).length, 1102, kind);
    }
  });

  t.test("streams that go on, end and begin unheard are told whole", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      const [first, next] = ["s1", "s2"].map((no) => producer(publisher, chat, no));
      await first?.start();
      await first?.content("a");
      await subscriber.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      for (const piece of ["b", "c"]) await first?.content(piece);
      await first?.end();
      await next?.start();
      await next?.content("d");
      comeBack();
      await until(() => isWhole(subscriber), "back");
      await next?.content("e");
      await subscriber.cluster.barrier();
      const ended = { text: "abc", state: "closed", wrong: 0 };
      t.same(viewOf(subscriber, chat, "s1"), ended, kind);
      const active = { text: "de", state: "active", wrong: 0 };
      t.same(viewOf(subscriber, chat, "s2"), active, kind);
      t.same(seqsOf(subscriber, chat.key), [1, 2]);
    }
  });

  t.test("the listener is told which topics it missed events of", async (t) => {
    const chat = newChat("group");
    const { subscriber, id } = await pair(t, driver, chat);
    const [user, seen] = [userTopic(randomUUID()), presenceTopic(randomUUID())];
    for (const topic of [user, seen]) await subscriber.cluster.listen(topic);
    network.cutSubscriptions(id);
    const missed = () =>
      subscriber.events.flatMap((one) => (one.kind === "missed" ? one.topic : []));
    await until(() => missed().length === 2, "it is told");
    t.same(new Set(missed()), new Set([user, seen]));
  });

  t.test("a conversation that was changed is told when its user is judged", async (t) => {
    const chat = newChat("personal");
    const { subscriber, publisher, id } = await pair(t, driver, chat);
    const uid = chat.channel.id;
    const conversation = (unread: number): ClusterEvent => ({
      ...{ kind: "conversation", uid, change: "read", origin: undefined },
      conversation: {
        channel: { id: chat.sender, type: PERSON_CHANNEL },
        ...{ headSeq: 9, readSeq: 9 - unread, unread, deletedSeq: 0 },
        ...{ changedAtMs: 1, last: undefined },
      },
    });
    const unread = () =>
      subscriber.events.flatMap((one) =>
        one.kind === "conversation" ? one.conversation.unread : [],
      );
    const answer = network.holdReplies(id); // the user is not judged before
    network.cutSubscriptions(id);
    const reached = async (event: ClusterEvent, text: string) => {
      const passed = network.publicationPassed(id, text);
      let isThere = false;
      void passed.then(() => {
        isThere = true;
      });
      await until(async () => {
        await publisher.cluster.announce([event]);
        return isThere;
      }, "it reaches the node");
    };
    await reached(conversation(3), chat.sender);
    await publisher.cluster.announce([conversation(2)]);
    await reached({ kind: "credential", uid }, "credential");
    t.same(unread(), [], "whose sessions may go on is not known");
    answer();
    await subscriber.cluster.barrier();
    t.equal(unread().at(-1), 2, "how it stands now");
    await publisher.cluster.announce([conversation(1)]);
    await subscriber.cluster.barrier();
    t.equal(unread().at(-1), 1);
  });
}

/**
 * The connection on which a node listens carries nothing any more; what it missed is the last that
 * happens.
 */
async function silence(t: Test, driver: DeliveryDriver): Promise<void> {
  const LAST: Readonly<Record<string, (node: DeliveryNode, chat: Chat) => Promise<unknown>>> = {
    message: (node, chat) => sendText(node, chat, "last"),
    "end of a stream": (node, chat) => producer(node, chat).end(),
    removal: ({ store }, { channel }) => store.removeSubscribers(channel, ["gone"], "permanent"),
  };
  for (const [what, last] of Object.entries(LAST))
    for (const kind of CHAT_KINDS) {
      if (what === "removal" && kind === "personal") continue;
      t.test(`${kind}: a last ${what} that is lost is noticed`, async (t) => {
        const chat = newChat(kind);
        const judged = recordingJudge(chat);
        const { subscriber, publisher, id } = await pair(t, driver, chat, judged.judge);
        judged.node = subscriber;
        if (kind === "group")
          await publisher.store.createChannel(groupInfo(chat.channel.id), ["gone"]);
        const stream = producer(publisher, chat);
        await stream.start();
        await stream.content("x");
        await subscriber.cluster.barrier();
        driver.network.silenceSubscriptions(id);
        const stalls = measureStalls(t);
        const since = performance.now();
        await last(publisher, chat);
        const isTold = () =>
          what === "message"
            ? deliveredTexts(subscriber, chat).includes("last")
            : what === "removal"
              ? judged.groups.length > 0
              : viewOf(subscriber, chat).state === "closed";
        await until(isTold, "it is noticed");
        const tookMs = performance.now() - since;
        t.ok(tookMs < NOTICED_MS + 10 * stalls.totalMs(), `${tookMs} ms`);
        t.same(orderErrors(subscriber), []);
      });
    }
}

/** After a fail-over to a replica that was behind numbers are given out again. */
async function lostHistory(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of CHAT_KINDS)
    for (const again of [1, 2, 3])
      for (const isCut of [true, false])
        t.test(`${kind}: 2 are lost, ${again} sent, ${isCut ? "unheard" : "heard"}`, async (t) => {
          const chat = newChat(kind);
          const { subscriber, publisher, id } = await pair(t, driver, chat);
          for (const at of range(1, 5)) await sendText(publisher, chat, `${at}`);
          await subscriber.cluster.barrier();
          const comeBack = isCut ? network.blockSubscriptions(id) : () => {};
          await driver.failOver(publisher, chat.key, {
            publications: 2,
            kept: true,
          });
          const later = range(1, again).map((at) => `later ${at}`);
          for (const text of later) await sendText(publisher, chat, text);
          comeBack();
          await untilDelivered(subscriber, chat, `later ${again}`);
          await sendText(publisher, chat, "last");
          await untilDelivered(subscriber, chat, "last");
          const told = [...range(1, 5).map(String), ...later, "last"];
          t.same(deliveredTexts(subscriber, chat), told);
          t.same(orderErrors(subscriber), []);
        });
  if (driver.publishesPerUser) await lostAndOvertaken(t, driver);
  for (const kind of CHAT_KINDS) await lostAhead(t, driver, kind); // last: buckets go on with ids of a clock ahead
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
            const chat = newChat("personal");
            const { subscriber, publisher, id } = await pair(t, driver, chat);
            await sendText(publisher, chat, "1");
            const early = range(1, lost).map((at) => `lost ${at}`);
            for (const text of early) await sendText(publisher, chat, text, isKept ? {} : UNSTORED);
            await untilDelivered(subscriber, chat, `lost ${lost}`);
            const publications = lost;
            const forgotten = { publications, kept: isKept };
            await driver.failOver(publisher, chat.key, forgotten);
            const later = range(1, lost).map((at) => `later ${at}`);
            const late = later.map((text) => network.delayPublication(id, text));
            for (const text of later) await sendText(publisher, chat, text);
            const overtaking = first === "stream" ? "" : "overtaking";
            if (first === "stream") await producer(publisher, chat).start();
            else
              await sendText(
                ...([publisher, chat, overtaking] as const),
                first === "message" ? {} : UNSTORED,
              );
            await untilDelivered(subscriber, chat, overtaking);
            for (const { arrived, release } of late) {
              await arrived;
              release();
            }
            await sendText(publisher, chat, "last");
            await untilDelivered(subscriber, chat, "last");
            const told = ["1", ...early, ...later, overtaking, "last"];
            t.same(deliveredTexts(subscriber, chat), told);
            t.same(orderErrors(subscriber), []);
          },
        );
}

/**
 * Ids of lost messages may be greater than those of new ones with their numbers, where the clock of
 * the node that sent them is ahead; and the messages of other channels may move the counter of ids
 * past them before anybody looks. Ids need not grow here.
 */
async function lostAhead(t: Test, driver: DeliveryDriver, kind: Chat["kind"]): Promise<void> {
  const { network } = driver;
  const scene = async (t: Test) => {
    const [chat, elsewhere] = [newChat(kind), newChat("group")];
    const found = await pair(t, driver, chat);
    const ahead = await driver.open(t, { aheadMs: 20_000 });
    return { ...found, chat, elsewhere, ahead };
  };

  for (const lost of [1, 2, 12])
    for (const isCut of [true, false])
      t.test(
        `${kind}: ${lost} by a clock ahead are lost, ${isCut ? "unheard" : "heard"}`,
        async (t) => {
          const { chat, elsewhere, subscriber, publisher, ahead, id } = await scene(t);
          await sendText(publisher, chat, "1");
          const early = range(1, lost).map((at) => `lost ${at}`);
          for (const text of early) await sendText(ahead, chat, text);
          await subscriber.cluster.barrier();
          const release = isCut ? network.blockSubscriptions(id) : network.holdPublications(id);
          const publications = lost;
          await driver.failOver(publisher, chat.key, { publications, kept: true });
          await sendText(publisher, chat, "later");
          await sendText(ahead, elsewhere, "the counter is past the lost ones");
          release();
          await untilDelivered(subscriber, chat, "later");
          await sendText(publisher, chat, "last");
          await untilDelivered(subscriber, chat, "last");
          t.same(deliveredTexts(subscriber, chat), ["1", ...early, "later", "last"]);
        },
      );

  t.test(`${kind}: an id of another channel is lost`, async (t) => {
    const elsewhere = newChat("group");
    const ahead = await driver.open(t, { aheadMs: 20_000 });
    await sendText(ahead, elsewhere, "lost");
    const chat = newChat(kind);
    const { subscriber, publisher, id } = await pair(t, driver, chat);
    const release = network.holdPublications(id);
    const forgotten = { publications: 1, kept: true } as const;
    await driver.failOver(publisher, elsewhere.key, forgotten);
    await sendText(publisher, chat, "1");
    await sendText(ahead, elsewhere, "the counter is past the lost one");
    release();
    await untilDelivered(subscriber, chat, "1");
    await sendText(publisher, chat, "2");
    await untilDelivered(subscriber, chat, "2");
    t.same(deliveredTexts(subscriber, chat), ["1", "2"]);
  });

  t.test(`${kind}: one that was not stored is lost`, async (t) => {
    const { chat, elsewhere, subscriber, publisher, ahead, id } = await scene(t);
    await sendText(publisher, chat, "1");
    await untilDelivered(subscriber, chat, "1"); // a node that reads a channel leaves out what is not stored
    await sendText(ahead, chat, "passing", UNSTORED);
    await subscriber.cluster.barrier();
    const release = network.holdPublications(id);
    const forgotten = { publications: 1, kept: false } as const;
    await driver.failOver(publisher, chat.key, forgotten);
    await sendText(publisher, chat, "later");
    await sendText(ahead, elsewhere, "the counter is past the lost one");
    release();
    await untilDelivered(subscriber, chat, "later");
    await sendText(publisher, chat, "last");
    await untilDelivered(subscriber, chat, "last");
    t.same(deliveredTexts(subscriber, chat), ["1", "passing", "later", "last"]);
  });

  for (const isEmptied of [true, false])
    t.test(
      `${kind}: ${isEmptied ? "all" : "some"} that were told are gone for their time is over, and none is lost`,
      async (t) => {
        const { chat, subscriber, publisher, id } = await scene(t);
        const expiring = { expireS: 1 };
        await sendText(publisher, chat, "1", isEmptied ? expiring : {});
        await sendText(publisher, chat, "2", expiring);
        await sendText(publisher, chat, "3", isEmptied ? expiring : {});
        await sendText(publisher, chat, "4", expiring);
        await sendText(publisher, chat, "passing", UNSTORED);
        await subscriber.cluster.barrier();
        const gone = isEmptied ? 4 : 2;
        let swept = 0;
        await until(async () => {
          swept += await driver.sweep(publisher);
          return swept === gone;
        }, "they are gone");
        for (const text of ["5", "6"]) {
          const comeBack = network.blockSubscriptions(id);
          await sendText(publisher, chat, text);
          comeBack();
          await untilDelivered(subscriber, chat, text);
        }
        t.same(deliveredTexts(subscriber, chat), ["1", "2", "3", "4", "passing", "5", "6"]);
        t.same(orderErrors(subscriber), []);
      },
    );
}

/** Nothing that is sent after a member is removed is told before that. */
async function removals(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  /** A group of these, in which something was said before. */
  async function scene(t: Test, members: readonly string[]) {
    const chat = newChat("group");
    const judged = recordingJudge(chat);
    const { subscriber, publisher, id } = await pair(t, driver, chat, judged.judge);
    judged.node = subscriber;
    const { channel } = chat;
    await publisher.store.createChannel(groupInfo(channel.id), members);
    const remove = (uid: string) => publisher.store.removeSubscribers(channel, [uid], "permanent");
    await sendText(publisher, chat, "before");
    await subscriber.cluster.barrier();
    return { chat, subscriber, publisher, id, judged, remove };
  }

  /** What was told of the group, in order. */
  const shown = ({ events }: DeliveryNode, { channel }: Chat) =>
    events.flatMap((one) => {
      if (one.kind === "removal" && one.channelId === channel.id) return [`without ${one.uids}`];
      if (one.kind !== "message" || one.message.channel.id !== channel.id) return [];
      return [JSON.parse(Buffer.from(one.message.payload).toString()).content];
    });

  t.test("a removal comes in turn with the messages", async (t) => {
    const { chat, subscriber, publisher, remove } = await scene(t, ["ann", "bob"]);
    await remove("ann");
    await sendText(publisher, chat, "behind");
    await subscriber.cluster.barrier();
    t.same(shown(subscriber, chat), ["before", "without ann", "behind"]);
  });

  t.test("a replaced list is judged in turn", async (t) => {
    const { chat, subscriber, publisher, judged } = await scene(t, ["ann", "bob"]);
    const replaced = { ...PERMANENT, reset: true };
    await publisher.store.addSubscribers(chat.channel, ["bob"], replaced);
    await sendText(publisher, chat, "behind");
    await untilDelivered(subscriber, chat, "behind");
    t.ok(judged.groups.includes("before"), "before what came behind it");
  });

  t.test("one that is lost is judged before anything behind it", async (t) => {
    const { chat, subscriber, publisher, id, judged, remove } = await scene(t, ["ann"]);
    const lost = network.dropPublication(id, "ann");
    await remove("ann");
    await lost;
    await sendText(publisher, chat, "behind");
    await untilDelivered(subscriber, chat, "behind");
    t.ok(judged.groups.includes("before"), "before what came behind it");
  });

  t.test("one that comes twice does no harm", async (t) => {
    const { chat, subscriber, publisher, id, remove } = await scene(t, ["ann"]);
    const twice = network.duplicatePublication(id, "ann");
    await remove("ann");
    await twice;
    await sendText(publisher, chat, "behind");
    await untilDelivered(subscriber, chat, "behind");
    await subscriber.cluster.barrier();
    t.same(shown(subscriber, chat), ["before", "without ann", "behind"]);
  });

  const forgetOne = { publications: 1, kept: false } as const;

  t.test("one with the number of a lost one is judged at once", async (t) => {
    const { chat, subscriber, publisher, judged, remove } = await scene(t, ["ann", "bob"]);
    await remove("ann");
    await subscriber.cluster.barrier();
    await driver.failOver(publisher, chat.key, forgetOne);
    await remove("bob");
    await sendText(publisher, chat, "behind");
    await untilDelivered(subscriber, chat, "behind");
    const isTold = shown(subscriber, chat).includes("without bob");
    t.ok(isTold || judged.groups.includes("before"), "before what came behind it");
  });

  t.test("so is one that came while the subscription was lost", async (t) => {
    const removal = await scene(t, ["ann", "bob"]);
    const ended = await scene(t, ["ann", "bob"]);
    const stream = producer(ended.publisher, ended.chat);
    await stream.start();
    await new Promise((go) => setTimeout(go, 11_000)); // what was said is too old to be lost by a fail-over
    for (const [what, { chat, subscriber, publisher, id, judged, remove }] of [
      ["a removal", removal],
      ["the end of a stream", ended],
    ] as const) {
      if (what === "a removal") await remove("ann");
      else await stream.end();
      await subscriber.cluster.barrier();
      const comeBack = network.blockSubscriptions(id);
      await driver.failOver(publisher, chat.key, forgetOne);
      await remove("bob");
      comeBack();
      await subscriber.cluster.barrier();
      t.ok(judged.groups.length > 0, `it has the number of ${what}`);
    }
  });

  t.test("what was missed is told after its group is judged", async (t) => {
    const { chat, subscriber, publisher, id, judged, remove } = await scene(t, ["ann"]);
    const comeBack = network.blockSubscriptions(id);
    await remove("ann");
    for (const at of range(1, 3)) await sendText(publisher, chat, `${at}`);
    comeBack();
    await subscriber.cluster.barrier();
    t.ok(judged.groups.includes("before"));
    t.same(deliveredTexts(subscriber, chat), ["before", "1", "2", "3"]);
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
      const [subscriber, publisher] = [
        await driver.open(t, { prefix }),
        await driver.open(t, { prefix }),
      ];
      const chats = range(1, TOPICS).map(() => newChat("group"));
      for (const { topic } of chats) await subscriber.cluster.listen(topic);
      const comeBack = network.blockSubscriptions(subscriber.cluster.nodeId);
      const busy = chats.slice(0, changed);
      for (const chat of busy) await sendText(publisher, chat, "missed");
      for (const server of network.servers) await server.client().call("CONFIG", "RESETSTAT");
      const since = performance.now();
      comeBack();
      await subscriber.cluster.barrier();
      const beats = Math.ceil((performance.now() - since) / 100);
      for (const chat of busy) t.same(deliveredTexts(subscriber, chat), ["missed"]);
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
      const chats = [...CHAT_KINDS, ...CHAT_KINDS].map(newChat) as [Chat, ...Chat[]];
      const { subscriber, publisher, id } = await pair(t, driver, chats[0]);
      const other = await driver.open(t);
      for (const { topic } of chats) await subscriber.cluster.listen(topic);
      const streams = chats.map((chat) => producer(publisher, chat));
      const texted = new Map<Chat, string>(chats.map((chat) => [chat, ""]));
      for (const stream of streams) await stream.start();
      let late: (() => void) | undefined;
      for (const at of range(1, 80)) {
        const which = random.below(chats.length);
        const chat = chats[which] as Chat;
        const text = `<${seed} ${at}>`;
        const fault = random.below(10);
        if (fault === 0) void network.dropPublication(id, text);
        if (fault === 1) void network.duplicatePublication(id, text);
        if (fault === 2) {
          late?.();
          late = network.delayPublication(id, text).release;
        }
        if (fault === 3 && random.flip()) network.cutSubscriptions(id);
        if (random.below(3) > 0) await sendText(random.flip() ? publisher : other, chat, text);
        else {
          await streams[which]?.content(text);
          texted.set(chat, `${texted.get(chat)}${text}`);
        }
      }
      late?.();
      for (const [at, chat] of chats.entries()) {
        await streams[at]?.end();
        await sendText(publisher, chat, "last");
        await untilDelivered(subscriber, chat, "last");
      }
      await subscriber.cluster.barrier();
      t.same(orderErrors(subscriber), []);
      for (const chat of chats) {
        const head = await publisher.store.headSeq(chat.key);
        t.same(seqsOf(subscriber, chat.key), range(1, head), chat.kind);
        const view = { text: texted.get(chat), state: "closed", wrong: 0 };
        t.same(viewOf(subscriber, chat), view);
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
