// The delivery contract: the guarantees that a store and a cluster together make to a node's
// listener, whatever happens to the connections and to Redis.

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
 * Maximum time that a node on an idle machine needs to notice that its subscriber connection is
 * silent, and to read the events published in the meantime.
 */
const MAX_NOTICE_MS = 5000;
const SEED = Number(process.env.JINDOU_TEST_SEED ?? 1);
const RUNS = volume(10, "JINDOU_TEST_ROUNDS");

/** Runs the whole contract against the driver. */
export function deliveryContract(t: Test, driver: DeliveryDriver): void {
  for (const [title, suite] of [
    ["every event reaches the nodes that listen to its topic", delivery],
    ["a publication that is lost, repeated or late is delivered once and in order", singles],
    ["a barrier waits for everything published before it", barriers],
    ["events published during a connection cut are delivered", cuts],
    ["a silent connection is noticed", silence],
    ["messages are delivered after a fail-over that lost the newest ones", lostHistory],
    ["the removal of a member takes effect before later messages are delivered", removals],
    ["a resync runs scripts only for the topics that changed", resync],
    ["deliveries are complete and in order under random faults", randomFaults],
  ] as const)
    t.test(`${driver.name}: ${title}`, (t) => suite(t, driver));
}

/** Opens a node that listens to the chat's topic and a node that does not. */
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

/** Returns true if the node has not noticed that it missed events. */
const hasMissedNothing = ({ cluster }: DeliveryNode): boolean => {
  const recovery = cluster.recovery(() => true);
  recovery?.catch(() => {}); // every call returns a promise of its own
  return recovery === undefined;
};

/** Waits until the node received the text from the chat. */
const untilDelivered = (node: DeliveryNode, chat: Chat, text: string) =>
  until(() => deliveredTexts(node, chat).includes(text), `${text} is delivered`);

async function delivery(t: Test, driver: DeliveryDriver): Promise<void> {
  t.test(
    "messages that several nodes send concurrently are delivered in the order of the store",
    async (t) => {
      const chat = newChat("group");
      const { subscriber, publisher } = await pair(t, driver, chat);
      const third = await driver.open(t);
      await third.cluster.listen(chat.topic);
      const results = await Promise.all(
        range(1, 100).map(async (at) => {
          const { messageSeq } = await sendText(at % 2 ? publisher : subscriber, chat, `${at}`);
          return { at, messageSeq };
        }),
      );
      results.sort((a, b) => a.messageSeq - b.messageSeq);
      const ordered = results.map(({ at }) => `${at}`);
      for (const node of [subscriber, third]) {
        await node.cluster.barrier();
        t.same(deliveredTexts(node, chat), ordered);
      }
      t.same(publisher.events, [], "a node that does not listen receives nothing");
    },
  );

  t.test(
    "a personal message reaches a node once if the node listens to the topics of both users",
    async (t) => {
      const chat = newChat("personal");
      const { subscriber, publisher } = await pair(t, driver, chat);
      await subscriber.cluster.listen(userTopic(chat.sender));
      for (const at of range(1, 20)) await sendText(publisher, chat, `${at}`);
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), range(1, 20).map(String));
    },
  );

  t.test("unstored messages are delivered in order with stored messages", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher } = await pair(t, driver, chat);
      for (const at of range(1, 6))
        await sendText(publisher, chat, `${at}`, at % 2 ? UNSTORED : {});
      await subscriber.cluster.barrier();
      t.same(deliveredTexts(subscriber, chat), range(1, 6).map(String), kind);
    }
  });

  t.test(
    "a node that starts to listen does not receive messages sent more than a second earlier",
    async (t) => {
      for (const kind of CHAT_KINDS) {
        const chat = newChat(kind);
        const [subscriber, publisher] = [await driver.open(t), await driver.open(t)];
        await sendText(publisher, chat, "before");
        await new Promise((go) => setTimeout(go, 1500)); // a personal message sent in the last second may be delivered too [docs/cluster.md]
        await subscriber.cluster.listen(chat.topic);
        await sendText(publisher, chat, "later");
        await subscriber.cluster.barrier();
        t.same(deliveredTexts(subscriber, chat), ["later"], kind);
      }
    },
  );

  t.test("stream events are delivered in order with the messages of their channel", async (t) => {
    for (const kind of CHAT_KINDS) {
      const chat = newChat(kind);
      const { subscriber, publisher } = await pair(t, driver, chat);
      const stream = producer(publisher, chat);
      await stream.start();
      await stream.content("one ");
      await sendText(publisher, chat, "between");
      // Without the barrier, the message's publication could be late. The node would then read the
      // message from the store, and deliver it after the stream's events.
      await subscriber.cluster.barrier();
      await stream.content("two");
      await stream.end();
      await subscriber.cluster.barrier();
      const order = subscriber.events.flatMap((event) => {
        if (event.kind === "message") return [`${event.message.messageSeq}`];
        return event.kind === "event" ? [event.event.data] : [];
      });
      t.same(order, ["1", "{}", "one ", "2", "two", ""], kind);
    }
  });

  t.test(
    "a node receives each event of its topics once, and only the command copies of users it listens to",
    async (t) => {
      const [first, second] = [await driver.open(t), await driver.open(t)];
      const [a, b, c] = range(1, 3).map(() => randomUUID()) as [...[string, string, string]];
      for (const topic of [userTopic(a), userTopic(b), presenceTopic(a)])
        await second.cluster.listen(topic);
      await first.cluster.listen(userTopic(c));
      const channel: ChannelRef = { id: b, type: PERSON_CHANNEL };
      const chat = { channel, sender: a, key: channelKey(channel, a) };
      await sendText(first, { kind: "personal", topic: userTopic(b), ...chat }, "x");
      await second.cluster.barrier();
      const [event] = second.events;
      if (event?.kind !== "message") throw new Error("no message was delivered");
      const { message } = event;
      const messageEvent = { kind: "message", message, origin: "s" } as const;
      const ended: ClusterEvent = {
        ...{ kind: "end_session", uid: a, sessionId: "s", reason: "kicked" },
      };
      const toBoth: ClusterEvent = { ...messageEvent, recipients: undefined };
      const presence: ClusterEvent = { kind: "presence", uid: a };
      const copies = [a, b, c].map((uid, at) => ({ uid, inboxSeq: at + 1 }));
      const command: ClusterEvent = {
        ...{ kind: "command", message, copies, origin: undefined },
      };
      const [forA, forB, forC] = copies.map((copy) => ({
        ...command,
        copies: [copy],
      }));
      const restricted: ClusterEvent = { ...messageEvent, recipients: [a, c] };
      for (const event of [ended, toBoth, restricted, presence, command])
        first.cluster.publish(event);
      await Promise.all([first.cluster.barrier(), second.cluster.barrier()]);
      const inAnyOrder = (events: readonly unknown[]) =>
        events.map((event) => JSON.stringify(event)).sort();
      const ofSecond = [ended, toBoth, presence, forA, forB];
      t.strictSame(
        inAnyOrder(second.events.slice(1)),
        inAnyOrder([...ofSecond, { ...messageEvent, recipients: [a] }]),
        "the event contains only recipients on this node",
      );
      t.strictSame(
        inAnyOrder(first.events),
        inAnyOrder([{ ...messageEvent, recipients: [c] }, forC]),
      );
    },
  );

  t.test(
    "a node that stops listening and later listens again does not receive messages of the break that are older than a second",
    async (t) => {
      for (const kind of CHAT_KINDS) {
        const chat = newChat(kind);
        const { subscriber, publisher } = await pair(t, driver, chat);
        await sendText(publisher, chat, "1");
        await subscriber.cluster.barrier();
        subscriber.cluster.unlisten(chat.topic);
        let probe = "";
        await until(async () => {
          probe = randomUUID();
          await sendText(publisher, chat, probe);
          await subscriber.cluster.barrier();
          return !deliveredTexts(subscriber, chat).includes(probe);
        }, "the node stops listening");
        for (const at of range(2, 5)) await sendText(publisher, chat, `${at}`);
        await new Promise((go) => setTimeout(go, 1500));
        await subscriber.cluster.listen(chat.topic);
        await sendText(publisher, chat, "6");
        await subscriber.cluster.barrier();
        const texts = deliveredTexts(subscriber, chat);
        t.equal(texts.at(-1), "6", kind);
        t.notOk(
          texts.some((text) => ["2", "3", "4", "5", probe].includes(text)),
          "messages sent in the meantime are not delivered",
        );
        t.same(orderErrors(subscriber), []);
      }
    },
  );
}

/** A single publication is lost, arrives twice, or arrives late. */
async function singles(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of CHAT_KINDS) {
    t.test(
      `in a ${kind} channel, a message whose publication is lost is delivered once and in order`,
      async (t) => {
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
      },
    );

    t.test(
      `in a ${kind} channel, the messages after a lost unstored message are delivered`,
      async (t) => {
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
      },
    );

    t.test(
      `in a ${kind} channel, a publication that arrives twice is delivered once`,
      async (t) => {
        const chat = newChat(kind);
        const { subscriber, publisher, id } = await pair(t, driver, chat);
        const stream = producer(publisher, chat);
        await stream.start();
        const duplicates = ["no 1", "no 2", "more"].map((text) =>
          network.duplicatePublication(id, text),
        );
        await sendText(publisher, chat, "no 1");
        await stream.content("more");
        await sendText(publisher, chat, "no 2", UNSTORED);
        await Promise.all(duplicates);
        await sendText(publisher, chat, "no 3");
        await subscriber.cluster.barrier();
        t.same(deliveredTexts(subscriber, chat), ["", "no 1", "no 2", "no 3"]);
        const view = { text: "more", state: "active", wrong: 0 };
        t.same(viewOf(subscriber, chat), view);
      },
    );

    t.test(
      `in a ${kind} channel, a message whose publication is delayed is delivered once, before later messages`,
      async (t) => {
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
      },
    );

    // Personal channels on one server are left out. No publication overtakes another there, so the
    // first publication that a node receives from a personal channel is the channel's first.
    if (kind === "group" || driver.publishesPerUser)
      t.test(
        `in a ${kind} channel, the first message is delivered first even if the second message arrives at the node earlier`,
        async (t) => {
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
        },
      );

    t.test(
      `in a ${kind} channel, a stream is delivered completely even if the publication of an event is lost`,
      async (t) => {
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
        await until(isRead, "the lost event is delivered");
        for (const piece of ["four ", "five"]) await stream.content(piece);
        await stream.end();
        await until(
          () => viewOf(subscriber, chat).state === "closed",
          "the end of the stream is delivered",
        );
        const text = "one two three four five";
        t.same(viewOf(subscriber, chat), { text, state: "closed", wrong: 0 });
      },
    );

    t.test(
      `in a ${kind} channel, a message whose publication is lost between the events of a stream is delivered once`,
      async (t) => {
        const chat = newChat(kind);
        const { subscriber, publisher, id } = await pair(t, driver, chat);
        const stream = producer(publisher, chat);
        await stream.start();
        await stream.content("one ");
        await subscriber.cluster.barrier();
        const lost = network.dropPublication(id, "between");
        await sendText(publisher, chat, "between");
        await lost;
        await stream.content("two");
        await stream.end();
        await sendText(publisher, chat, "after");
        await subscriber.cluster.barrier();
        // The message may come after events that were sent later [docs/protocol/native.md].
        t.same(deliveredTexts(subscriber, chat), ["", "between", "after"]);
        t.same(viewOf(subscriber, chat), { text: "one two", state: "closed", wrong: 0 });
        t.same(orderErrors(subscriber), []);
      },
    );
  }

  if (!driver.publishesPerUser) return;

  t.test(
    "a stored message is delivered even if the sending node died before publishing it",
    async (t) => {
      const chat = newChat("personal");
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      await sendText(publisher, chat, "no 1");
      await untilDelivered(subscriber, chat, "no 1");
      const dying = await driver.open(t);
      const { nodeId } = dying.cluster;
      const dropped = network.dropCommand(nodeId, ["no 2", `{u:${chat.channel.id}}`]);
      await t.rejects(sendText(dying, chat, "no 2"), { code: "unavailable" });
      await dropped;
      await sendText(publisher, chat, "no 3");
      await untilDelivered(subscriber, chat, "no 3");
      t.same(deliveredTexts(subscriber, chat), ["no 1", "no 2", "no 3"], id);
    },
  );
}

async function barriers(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test(
    "`barrier` resolves only after all earlier publications have been delivered",
    async (t) => {
      const [group, personal] = CHAT_KINDS.map(newChat) as [Chat, Chat];
      const { subscriber, publisher, id } = await pair(t, driver, group);
      await subscriber.cluster.listen(personal.topic);
      const uid = personal.channel.id;
      const received = () => [
        ...deliveredTexts(subscriber, group),
        ...deliveredTexts(subscriber, personal),
        ...subscriber.events.filter(({ kind }) => kind === "credential"),
      ];
      for (const at of range(1, 5)) {
        const before = received().length;
        const release = network.holdPublications(id);
        await sendText(publisher, group, `group ${at}`);
        await sendText(publisher, personal, `personal ${at}`);
        await publisher.cluster.announce([{ kind: "credential", uid }]);
        let isResolved = false;
        const barrier = subscriber.cluster.barrier().then(() => {
          isResolved = true;
          return received().length;
        });
        await roundTrips(subscriber);
        t.notOk(isResolved, "the barrier waits");
        t.equal(received().length, before, "nothing is delivered yet");
        release();
        t.equal(
          await barrier,
          before + 3,
          "every earlier event is delivered when the barrier resolves",
        );
      }
    },
  );

  for (const method of ["barrier", "recovery"] as const)
    t.test(
      `${method} resolves only after the messages that the node missed have been delivered`,
      async (t) => {
        const chats = range(1, 150).map((at) => newChat(CHAT_KINDS[at % 2] ?? "group"));
        const [first] = chats as [Chat];
        const { subscriber, publisher, id } = await pair(t, driver, first);
        const concerns = (topic: string) => topic === first.topic;
        for (const { topic } of chats) await subscriber.cluster.listen(topic);
        t.equal(
          subscriber.cluster.recovery(concerns),
          undefined,
          "no event was missed before the cut",
        );
        const unblock = network.blockSubscriptions(id);
        await Promise.all(chats.map((chat) => sendText(publisher, chat, "missed")));
        await until(
          () => subscriber.cluster.recovery(concerns) !== undefined,
          "the loss is noticed",
        );
        const completed =
          method === "barrier"
            ? subscriber.cluster.barrier()
            : subscriber.cluster.recovery(concerns);
        unblock();
        await completed;
        t.same(
          chats.filter((chat) => deliveredTexts(subscriber, chat).length !== 1),
          [],
        );
      },
    );

  t.test("`recovery` returns undefined for topics that the node does not listen to", async (t) => {
    const chat = newChat("group");
    const { subscriber, id } = await pair(t, driver, chat);
    const unblock = network.blockSubscriptions(id);
    const other = (topic: string) => topic === groupTopic("another");
    const every = () => true;
    await until(() => subscriber.cluster.recovery(every) !== undefined, "the loss is noticed");
    t.equal(subscriber.cluster.recovery(other), undefined);
    unblock();
    await subscriber.cluster.barrier();
    t.equal(subscriber.cluster.recovery(every), undefined);
  });
}

async function cuts(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  t.test(
    "messages sent while the subscriber connection is cut are delivered once and in the order of their seqs",
    async (t) => {
      const [group, personal] = CHAT_KINDS.map(newChat) as [Chat, Chat];
      const { subscriber, publisher, id } = await pair(t, driver, group);
      await subscriber.cluster.listen(personal.topic);
      let sent = 0;
      for (const _ of range(1, 4)) {
        const sends = range(1, 40).map((at) =>
          sendText(publisher, at % 2 ? group : personal, `${at}`),
        );
        network.cutSubscriptions(id);
        await Promise.all(sends);
        for (const at of range(1, 10))
          await sendText(publisher, at % 2 ? group : personal, `${at}`);
        sent += 50;
        await subscriber.cluster.barrier();
      }
      t.same(orderErrors(subscriber), []);
      for (const { key } of [group, personal])
        t.same(seqsOf(subscriber, key), range(1, sent / 2), key);
    },
  );

  t.test(
    "messages that a node missed are delivered even if one read from the store does not return them all",
    async (t) => {
      for (const kind of CHAT_KINDS) {
        const chat = newChat(kind);
        const { subscriber, publisher, id } = await pair(t, driver, chat);
        await sendText(publisher, chat, "first");
        await subscriber.cluster.barrier();
        const unblock = network.blockSubscriptions(id);
        const all = range(1, 1100).map((at) => sendText(publisher, chat, `${at}`));
        await Promise.all(all);
        unblock();
        await sendText(publisher, chat, "last");
        await untilDelivered(subscriber, chat, "last");
        t.same(orderErrors(subscriber), []);
        t.equal(deliveredTexts(subscriber, chat).length, 1102, kind);
      }
    },
  );

  t.test(
    "streams that continue, end and start while the node is disconnected are delivered completely",
    async (t) => {
      for (const kind of CHAT_KINDS) {
        const chat = newChat(kind);
        const { subscriber, publisher, id } = await pair(t, driver, chat);
        const [first, next] = ["s1", "s2"].map((name) => producer(publisher, chat, name));
        await first?.start();
        await first?.content("a");
        await subscriber.cluster.barrier();
        const unblock = network.blockSubscriptions(id);
        for (const piece of ["b", "c"]) await first?.content(piece);
        await first?.end();
        await next?.start();
        await next?.content("d");
        unblock();
        await until(() => hasMissedNothing(subscriber), "the node has read the missed events");
        await next?.content("e");
        await subscriber.cluster.barrier();
        const ended = { text: "abc", state: "closed", wrong: 0 };
        t.same(viewOf(subscriber, chat, "s1"), ended, kind);
        const active = { text: "de", state: "active", wrong: 0 };
        t.same(viewOf(subscriber, chat, "s2"), active, kind);
        t.same(seqsOf(subscriber, chat.key), [1, 2]);
      }
    },
  );

  t.test(
    "after a connection cut, a node's listener is notified of each user and presence topic whose events may have been missed",
    async (t) => {
      const chat = newChat("group");
      const { subscriber, id } = await pair(t, driver, chat);
      const [user, presence] = [userTopic(randomUUID()), presenceTopic(randomUUID())];
      for (const topic of [user, presence]) await subscriber.cluster.listen(topic);
      network.cutSubscriptions(id);
      const missed = () =>
        subscriber.events.flatMap((event) => (event.kind === "missed" ? event.topic : []));
      await until(() => missed().length === 2, "both topics are reported");
      t.same(new Set(missed()), new Set([user, presence]));
    },
  );

  t.test(
    "after a lost connection, a conversation change is delivered only after the node has checked that the user's sessions still exist",
    async (t) => {
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
        subscriber.events.flatMap((event) =>
          event.kind === "conversation" ? event.conversation.unread : [],
        );
      const releaseReplies = network.holdReplies(id); // the check of the user's sessions then does not finish
      network.cutSubscriptions(id);
      const announceUntilReceived = async (event: ClusterEvent, text: string) => {
        const arrival = network.publicationPassed(id, text);
        let hasArrived = false;
        void arrival.then(() => {
          hasArrived = true;
        });
        await until(async () => {
          await publisher.cluster.announce([event]);
          return hasArrived;
        }, "the event reaches the node");
      };
      await announceUntilReceived(conversation(3), chat.sender);
      await publisher.cluster.announce([conversation(2)]);
      await announceUntilReceived({ kind: "credential", uid }, "credential");
      t.same(unread(), [], "no change is delivered before the check");
      releaseReplies();
      await subscriber.cluster.barrier();
      t.equal(unread().at(-1), 2, "the latest change is delivered after the check");
      await publisher.cluster.announce([conversation(1)]);
      await subscriber.cluster.barrier();
      t.equal(unread().at(-1), 1, "later changes are delivered at once");
    },
  );
}

/**
 * The node's subscriber connection is open but no longer carries data. The event that the node
 * misses is the last event, so that no later event reveals the loss.
 */
async function silence(t: Test, driver: DeliveryDriver): Promise<void> {
  const LAST: Readonly<Record<string, (node: DeliveryNode, chat: Chat) => Promise<unknown>>> = {
    message: (node, chat) => sendText(node, chat, "last"),
    "end of a stream": (node, chat) => producer(node, chat).end(),
    removal: ({ store }, { channel }) => store.removeSubscribers(channel, ["gone"], "permanent"),
  };
  for (const [title, last] of Object.entries(LAST))
    for (const kind of CHAT_KINDS) {
      if (title === "removal" && kind === "personal") continue;
      t.test(
        `in a ${kind} channel, a lost ${title} is noticed even if it is the last publication`,
        async (t) => {
          const chat = newChat(kind);
          const recorder = recordingJudge(chat);
          const { subscriber, publisher, id } = await pair(t, driver, chat, recorder.judge);
          recorder.node = subscriber;
          if (kind === "group")
            await publisher.store.createChannel(groupInfo(chat.channel.id), ["gone"]);
          const stream = producer(publisher, chat);
          await stream.start();
          await stream.content("x");
          await subscriber.cluster.barrier();
          driver.network.silenceSubscriptions(id);
          const stalls = measureStalls(t);
          const startMs = performance.now();
          await last(publisher, chat);
          const isNoticed = () =>
            title === "message"
              ? deliveredTexts(subscriber, chat).includes("last")
              : title === "removal"
                ? recorder.lastTexts.length > 0
                : viewOf(subscriber, chat).state === "closed";
          await until(isNoticed, `the ${title} is noticed`);
          const tookMs = performance.now() - startMs;
          t.ok(
            tookMs < MAX_NOTICE_MS + 10 * stalls.totalMs(),
            `the loss is noticed in time: ${tookMs} ms`,
          );
          t.same(orderErrors(subscriber), []);
        },
      );
    }
}

/**
 * After a fail-over to a replica that lacks the newest messages, their numbers are assigned again.
 */
async function lostHistory(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const kind of CHAT_KINDS)
    for (const count of [1, 2, 3])
      for (const isCut of [true, false])
        t.test(
          `in a ${kind} channel, new messages are delivered after a fail-over that lost the last 2 publications (new messages: ${count}, node ${isCut ? "disconnected" : "connected"})`,
          async (t) => {
            const chat = newChat(kind);
            const { subscriber, publisher, id } = await pair(t, driver, chat);
            for (const at of range(1, 5)) await sendText(publisher, chat, `${at}`);
            await subscriber.cluster.barrier();
            const unblock = isCut ? network.blockSubscriptions(id) : () => {};
            await driver.failOver(publisher, chat.key, {
              publications: 2,
              kept: true,
            });
            const later = range(1, count).map((at) => `later ${at}`);
            for (const text of later) await sendText(publisher, chat, text);
            unblock();
            await untilDelivered(subscriber, chat, `later ${count}`);
            await sendText(publisher, chat, "last");
            await untilDelivered(subscriber, chat, "last");
            const expected = [...range(1, 5).map(String), ...later, "last"];
            t.same(deliveredTexts(subscriber, chat), expected);
            t.same(orderErrors(subscriber), []);
          },
        );
  if (driver.publishesPerUser) await lostAndOvertaken(t, driver);
  for (const kind of CHAT_KINDS) await lostAhead(t, driver, kind); // runs last, because a node whose clock is ahead raises all later ids
}

/** A publication after a fail-over arrives before the messages that reuse the lost numbers. */
async function lostAndOvertaken(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const lost of [1, 2])
    for (const isKept of [true, false])
      for (const first of ["message", "unstored message", "stream"] as const)
        t.test(
          `in a personal channel, publications after a fail-over are delivered in the order in which they were sent, even if the last one arrives first (lost ${isKept ? "stored" : "unstored"} messages: ${lost}, last publication: ${first})`,
          async (t) => {
            const chat = newChat("personal");
            const { subscriber, publisher, id } = await pair(t, driver, chat);
            await sendText(publisher, chat, "1");
            const early = range(1, lost).map((at) => `lost ${at}`);
            for (const text of early) await sendText(publisher, chat, text, isKept ? {} : UNSTORED);
            await untilDelivered(subscriber, chat, `lost ${lost}`);
            const publications = lost;
            const loss = { publications, kept: isKept };
            await driver.failOver(publisher, chat.key, loss);
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
            const expected = ["1", ...early, ...later, overtaking, "last"];
            t.same(deliveredTexts(subscriber, chat), expected);
            t.same(orderErrors(subscriber), []);
          },
        );
}

/**
 * A lost message may have a higher id than the new message with the same number, if the clock of
 * the sending node is ahead. Messages of other channels may move the id counter beyond the lost ids
 * before a node compares them. In these tests, ids need not increase.
 */
async function lostAhead(t: Test, driver: DeliveryDriver, kind: Chat["kind"]): Promise<void> {
  const { network } = driver;
  const openChat = async (t: Test) => {
    const [chat, elsewhere] = [newChat(kind), newChat("group")];
    const nodes = await pair(t, driver, chat);
    const ahead = await driver.open(t, { aheadMs: 20_000 });
    return { ...nodes, chat, elsewhere, ahead };
  };

  for (const lost of [1, 2, 12])
    for (const isCut of [true, false])
      t.test(
        `in a ${kind} channel, new messages are delivered after a fail-over that lost messages with higher ids than the new ones (lost messages: ${lost}, node ${isCut ? "disconnected" : "connected"})`,
        async (t) => {
          const { chat, elsewhere, subscriber, publisher, ahead, id } = await openChat(t);
          await sendText(publisher, chat, "1");
          const early = range(1, lost).map((at) => `lost ${at}`);
          for (const text of early) await sendText(ahead, chat, text);
          await subscriber.cluster.barrier();
          const release = isCut ? network.blockSubscriptions(id) : network.holdPublications(id);
          const publications = lost;
          await driver.failOver(publisher, chat.key, { publications, kept: true });
          await sendText(publisher, chat, "later");
          await sendText(ahead, elsewhere, "moves the counter beyond the lost ids");
          release();
          await untilDelivered(subscriber, chat, "later");
          await sendText(publisher, chat, "last");
          await untilDelivered(subscriber, chat, "last");
          t.same(deliveredTexts(subscriber, chat), ["1", ...early, "later", "last"]);
        },
      );

  t.test(
    `in a ${kind} channel, new messages are delivered after a fail-over that lost a message of another channel with a higher id than the new ones`,
    async (t) => {
      const elsewhere = newChat("group");
      const ahead = await driver.open(t, { aheadMs: 20_000 });
      await sendText(ahead, elsewhere, "lost");
      const chat = newChat(kind);
      const { subscriber, publisher, id } = await pair(t, driver, chat);
      const release = network.holdPublications(id);
      const loss = { publications: 1, kept: true } as const;
      await driver.failOver(publisher, elsewhere.key, loss);
      await sendText(publisher, chat, "1");
      await sendText(ahead, elsewhere, "moves the counter beyond the lost id");
      release();
      await untilDelivered(subscriber, chat, "1");
      await sendText(publisher, chat, "2");
      await untilDelivered(subscriber, chat, "2");
      t.same(deliveredTexts(subscriber, chat), ["1", "2"]);
    },
  );

  t.test(
    `in a ${kind} channel, new messages are delivered after a fail-over that lost an unstored message with a higher id than the new ones`,
    async (t) => {
      const { chat, elsewhere, subscriber, publisher, ahead, id } = await openChat(t);
      await sendText(publisher, chat, "1");
      await untilDelivered(subscriber, chat, "1"); // a node that reads the channel from the store receives no unstored messages
      await sendText(ahead, chat, "unstored", UNSTORED);
      await subscriber.cluster.barrier();
      const release = network.holdPublications(id);
      const loss = { publications: 1, kept: false } as const;
      await driver.failOver(publisher, chat.key, loss);
      await sendText(publisher, chat, "later");
      await sendText(ahead, elsewhere, "moves the counter beyond the lost id");
      release();
      await untilDelivered(subscriber, chat, "later");
      await sendText(publisher, chat, "last");
      await untilDelivered(subscriber, chat, "last");
      t.same(deliveredTexts(subscriber, chat), ["1", "unstored", "later", "last"]);
    },
  );

  for (const isEmptied of [true, false])
    t.test(
      `in a ${kind} channel, messages that a node missed are delivered even if ${isEmptied ? "all" : "some"} earlier messages have expired`,
      async (t) => {
        const { chat, subscriber, publisher, id } = await openChat(t);
        const expiring = { expireS: 1 };
        await sendText(publisher, chat, "1", isEmptied ? expiring : {});
        await sendText(publisher, chat, "2", expiring);
        await sendText(publisher, chat, "3", isEmptied ? expiring : {});
        await sendText(publisher, chat, "4", expiring);
        await sendText(publisher, chat, "unstored", UNSTORED);
        await subscriber.cluster.barrier();
        const expiredCount = isEmptied ? 4 : 2;
        let swept = 0;
        await until(async () => {
          swept += await driver.sweep(publisher);
          return swept === expiredCount;
        }, "the expired messages are removed");
        for (const text of ["5", "6"]) {
          const unblock = network.blockSubscriptions(id);
          await sendText(publisher, chat, text);
          unblock();
          await untilDelivered(subscriber, chat, text);
        }
        t.same(deliveredTexts(subscriber, chat), ["1", "2", "3", "4", "unstored", "5", "6"]);
        t.same(orderErrors(subscriber), []);
      },
    );
}

/**
 * A message that is sent after the removal of a member is not delivered before the removal takes
 * effect.
 */
async function removals(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;

  /** Creates a group with these members, in which one message was delivered. */
  async function openGroup(t: Test, members: readonly string[]) {
    const chat = newChat("group");
    const recorder = recordingJudge(chat);
    const { subscriber, publisher, id } = await pair(t, driver, chat, recorder.judge);
    recorder.node = subscriber;
    const { channel } = chat;
    await publisher.store.createChannel(groupInfo(channel.id), members);
    const remove = (uid: string) => publisher.store.removeSubscribers(channel, [uid], "permanent");
    await sendText(publisher, chat, "before");
    await subscriber.cluster.barrier();
    return { chat, subscriber, publisher, id, recorder, remove };
  }

  /** Returns the group's messages and removals that the node received, in order. */
  const deliveriesOf = ({ events }: DeliveryNode, { channel }: Chat) =>
    events.flatMap((event) => {
      if (event.kind === "removal" && event.channelId === channel.id)
        return [`without ${event.uids}`];
      if (event.kind !== "message" || event.message.channel.id !== channel.id) return [];
      return [JSON.parse(Buffer.from(event.message.payload).toString()).content];
    });

  t.test(
    "a member's removal is delivered after earlier and before later messages of the group",
    async (t) => {
      const { chat, subscriber, publisher, remove } = await openGroup(t, ["ann", "bob"]);
      await remove("ann");
      await sendText(publisher, chat, "later");
      await subscriber.cluster.barrier();
      t.same(deliveriesOf(subscriber, chat), ["before", "without ann", "later"]);
    },
  );

  t.test(
    "if a group's member list is replaced, the node checks who is still a member before it delivers later messages",
    async (t) => {
      const { chat, subscriber, publisher, recorder } = await openGroup(t, ["ann", "bob"]);
      const replaced = { ...PERMANENT, reset: true };
      await publisher.store.addSubscribers(chat.channel, ["bob"], replaced);
      await sendText(publisher, chat, "later");
      await untilDelivered(subscriber, chat, "later");
      t.ok(
        recorder.lastTexts.includes("before"),
        "the members are checked before the later message",
      );
    },
  );

  t.test(
    "if the publication of a member's removal is lost, the node checks who is still a member before it delivers later messages",
    async (t) => {
      const { chat, subscriber, publisher, id, recorder, remove } = await openGroup(t, ["ann"]);
      const lost = network.dropPublication(id, "ann");
      await remove("ann");
      await lost;
      await sendText(publisher, chat, "later");
      await untilDelivered(subscriber, chat, "later");
      t.ok(
        recorder.lastTexts.includes("before"),
        "the members are checked before the later message",
      );
    },
  );

  t.test(
    "a member's removal is delivered once even if its publication arrives twice",
    async (t) => {
      const { chat, subscriber, publisher, id, remove } = await openGroup(t, ["ann"]);
      const duplicate = network.duplicatePublication(id, "ann");
      await remove("ann");
      await duplicate;
      await sendText(publisher, chat, "later");
      await untilDelivered(subscriber, chat, "later");
      await subscriber.cluster.barrier();
      t.same(deliveriesOf(subscriber, chat), ["before", "without ann", "later"]);
    },
  );

  const oneLost = { publications: 1, kept: false } as const;

  t.test(
    "a member's removal takes effect before later messages are delivered, even if it reuses the publication number of a removal that a fail-over lost",
    async (t) => {
      const { chat, subscriber, publisher, recorder, remove } = await openGroup(t, ["ann", "bob"]);
      await remove("ann");
      await subscriber.cluster.barrier();
      await driver.failOver(publisher, chat.key, oneLost);
      await remove("bob");
      await sendText(publisher, chat, "later");
      await untilDelivered(subscriber, chat, "later");
      const isDelivered = deliveriesOf(subscriber, chat).includes("without bob");
      t.ok(
        isDelivered || recorder.lastTexts.includes("before"),
        "the removal takes effect before the later message",
      );
    },
  );

  t.test(
    "a node that was disconnected checks a group's members if a removal reuses the publication number of a publication that a fail-over lost",
    async (t) => {
      const removal = await openGroup(t, ["ann", "bob"]);
      const ended = await openGroup(t, ["ann", "bob"]);
      const stream = producer(ended.publisher, ended.chat);
      await stream.start();
      await new Promise((go) => setTimeout(go, 11_000)); // afterwards the messages are too old to be compared as possibly lost
      for (const [title, { chat, subscriber, publisher, id, recorder, remove }] of [
        ["a removal", removal],
        ["the end of a stream", ended],
      ] as const) {
        if (title === "a removal") await remove("ann");
        else await stream.end();
        await subscriber.cluster.barrier();
        const unblock = network.blockSubscriptions(id);
        await driver.failOver(publisher, chat.key, oneLost);
        await remove("bob");
        unblock();
        await subscriber.cluster.barrier();
        t.ok(
          recorder.lastTexts.length > 0,
          `the members are checked if the removal has the number of ${title}`,
        );
      }
    },
  );

  t.test("a node checks a group's members before it delivers missed messages", async (t) => {
    const { chat, subscriber, publisher, id, recorder, remove } = await openGroup(t, ["ann"]);
    const unblock = network.blockSubscriptions(id);
    await remove("ann");
    for (const at of range(1, 3)) await sendText(publisher, chat, `${at}`);
    unblock();
    await subscriber.cluster.barrier();
    t.ok(
      recorder.lastTexts.includes("before"),
      "the members are checked before the missed messages",
    );
    t.same(deliveredTexts(subscriber, chat), ["before", "1", "2", "3"]);
  });
}

/**
 * When the subscriptions of a node are restored, the number of scripts that run grows only with the
 * number of topics that changed.
 */
async function resync(t: Test, driver: DeliveryDriver): Promise<void> {
  const TOPICS = 300;
  const { network } = driver;
  for (const changedCount of [0, 3, 30])
    t.test(
      `a resync of ${TOPICS} groups runs scripts only for the changed groups (changed groups: ${changedCount})`,
      async (t) => {
        const prefix = `r${changedCount}`; // no message was ever sent under this prefix
        const [subscriber, publisher] = [
          await driver.open(t, { prefix }),
          await driver.open(t, { prefix }),
        ];
        const chats = range(1, TOPICS).map(() => newChat("group"));
        for (const { topic } of chats) await subscriber.cluster.listen(topic);
        const unblock = network.blockSubscriptions(subscriber.cluster.nodeId);
        const changed = chats.slice(0, changedCount);
        for (const chat of changed) await sendText(publisher, chat, "missed");
        const startMs = performance.now();
        for (const server of network.servers) await server.client().call("CONFIG", "RESETSTAT");
        unblock();
        await subscriber.cluster.barrier();
        for (const chat of changed) t.same(deliveredTexts(subscriber, chat), ["missed"]);
        const reads = await commandCount(driver, "hget");
        const scripts = await commandCount(driver, "evalsha");
        // Each of the two nodes may send a heartbeat at once, and then at most ten per second.
        const beats = 2 + Math.ceil((performance.now() - startMs) / 100);
        t.ok(reads >= TOPICS, "the publication number of each group is read");
        t.ok(reads <= TOPICS + 2 * scripts, `each number is read once: ${reads} reads`); // a heartbeat reads two numbers
        t.ok(
          scripts <= 4 * changedCount + beats,
          `at most 4 scripts run for each changed group: ${scripts} scripts, ${beats} heartbeats`,
        );
      },
    );
}

/**
 * Returns how often clients and scripts ran the command on all servers since the statistics were
 * reset.
 */
async function commandCount({ network }: DeliveryDriver, command: string): Promise<number> {
  let count = 0;
  for (const server of network.servers) {
    const stats = await server.client().info("commandstats");
    const match = new RegExp(`cmdstat_${command}:calls=(\\d+)`).exec(stats);
    count += Number(match?.[1] ?? 0);
  }
  return count;
}

/**
 * Random faults in any order. At the end, the node has received every message once and in order,
 * and every stream without a gap.
 */
async function randomFaults(t: Test, driver: DeliveryDriver): Promise<void> {
  const { network } = driver;
  for (const run of range(1, RUNS)) {
    const seed = SEED * 1000 + run;
    t.test(
      `all messages and streams are delivered despite random faults (seed ${seed})`,
      async (t) => {
        const random = new Random(seed);
        const chats = [...CHAT_KINDS, ...CHAT_KINDS].map(newChat) as [Chat, ...Chat[]];
        const { subscriber, publisher, id } = await pair(t, driver, chats[0]);
        const secondPublisher = await driver.open(t);
        for (const { topic } of chats) await subscriber.cluster.listen(topic);
        const streams = chats.map((chat) => producer(publisher, chat));
        const streamTexts = new Map<Chat, string>(chats.map((chat) => [chat, ""]));
        for (const stream of streams) await stream.start();
        let late: (() => void) | undefined;
        for (const at of range(1, 80)) {
          const index = random.below(chats.length);
          const chat = chats[index] as Chat;
          const text = `<${seed} ${at}>`;
          const fault = random.below(10);
          if (fault === 0) void network.dropPublication(id, text);
          if (fault === 1) void network.duplicatePublication(id, text);
          if (fault === 2) {
            late?.();
            late = network.delayPublication(id, text).release;
          }
          if (fault === 3 && random.flip()) network.cutSubscriptions(id);
          if (random.below(3) > 0)
            await sendText(random.flip() ? publisher : secondPublisher, chat, text);
          else {
            await streams[index]?.content(text);
            streamTexts.set(chat, `${streamTexts.get(chat)}${text}`);
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
          const view = { text: streamTexts.get(chat), state: "closed", wrong: 0 };
          t.same(viewOf(subscriber, chat), view);
        }
      },
    );
  }
}

/** Returns the seqs of the channel's messages that the node received, in order. */
function seqsOf({ events }: DeliveryNode, key: ChannelKey): readonly number[] {
  return events.flatMap((event) =>
    event.kind === "message" && event.message.key === key ? event.message.messageSeq : [],
  );
}
