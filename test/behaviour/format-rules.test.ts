// Rules of the broker over every wire format: who may send, the order of messages, the devices that
// messages are pushed to, and the maximum size.

import type { Test } from "tap";
import type { ChannelRef } from "../../src/broker/model.ts";
import { t } from "../support/suite.ts";
import { TCP_LISTENER } from "../support/wkproto-client.ts";
import { closeCode, type FormatClient } from "./formats/format.ts";
import { FORMATS } from "./formats/formats.ts";
import { joinFormat, refusalOf } from "./formats/join.ts";
import {
  group,
  person,
  range,
  sendUntilOffline,
  startWorld,
  untilReceived,
  wire,
} from "./world.ts";

const AUTH_FAILED = 2;
const NOT_SUBSCRIBER = 3;
const ON_DENYLIST = 4;
const PAYLOAD = 9;
const NOT_IN_ALLOWLIST = 13;
const BANNED = 19;
const DISBANDED = 24;
const SEND_BANNED = 25;

const MAX_PAYLOAD_BYTES = 65_536;
const EMPTY_TEXT_BYTES = JSON.stringify({ type: 1, content: "" }).length;
const SENDS = 50;
const EACH = 20;

const world = await startWorld(t, TCP_LISTENER);

/** Calls a list endpoint of the channel. */
const list = (call: string, channel: ChannelRef, uid: string) =>
  world.ok(`/channel/${call}`, { ...wire(channel), uids: [uid] });

const reasonOf = async (client: FormatClient, channel: ChannelRef) =>
  (await refusalOf(client.send(channel, "no"))).reason;

/** Returns the seqs of the messages that a disconnected client has received but not read yet. */
async function remaining(client: FormatClient): Promise<readonly number[]> {
  const seqs: number[] = [];
  try {
    for (;;) seqs.push((await client.nextMessage()).messageSeq);
  } catch {
    return seqs; // no more messages
  }
}

for (const format of FORMATS) {
  const { name } = format;
  const join = (t: Test, uid: string, options?: Parameters<typeof joinFormat>[4]) =>
    joinFormat(t, world, format, uid, options);

  t.test(
    `a send that a permission rule forbids is refused with the rule's reason over ${name}`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const client = await join(t, ann);
      for (const [flags, reason] of [
        [{ ban: 1 }, BANNED],
        [{ send_ban: 1 }, SEND_BANNED],
        [{ disband: 1 }, DISBANDED],
      ] as const) {
        const channel = await world.newGroup([ann], flags);
        t.equal(await reasonOf(client, channel), reason);
      }
      t.equal(
        await reasonOf(client, group(world.name("none"))),
        NOT_SUBSCRIBER,
        "an unknown group has no members",
      );
      const channel = await world.newGroup([ann, ben]);
      await list("blacklist_add", channel, ann);
      t.equal(await reasonOf(client, channel), ON_DENYLIST);
      await list("blacklist_remove", channel, ann);
      await list("whitelist_add", channel, ben);
      t.equal(await reasonOf(client, channel), NOT_IN_ALLOWLIST);
      await list("whitelist_add", channel, ann);
      t.equal(await client.send(channel, "yes"), 1, "none of the refused messages was stored");

      await world.ok("/channel", {
        ...{ ...wire(person(ben)), allow_stranger: 0, subscribers: ["eve"] },
      });
      t.equal(await reasonOf(client, person(ben)), NOT_IN_ALLOWLIST, "a stranger is refused");
    },
  );

  t.test(
    `a client that uses ${name} receives the messages of a group only while its user is a member`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const channel = await world.newGroup([ben]);
      const members = { ...wire(channel), subscribers: [ann] };
      const client = await join(t, ann);
      await world.send(ben, channel, "before");
      await world.ok("/channel/subscriber_add", members);
      await world.untilSubscribed();
      await world.send(ben, channel, "as a member");
      await world.ok("/channel/subscriber_remove", members);
      await world.untilSubscribed();
      await world.send(ben, channel, "after");
      t.equal(await reasonOf(client, channel), NOT_SUBSCRIBER);
      await world.send(ben, person(ann), "in person");
      t.equal((await client.nextMessage()).text, "as a member");
      t.equal(
        (await client.nextMessage()).text,
        "in person",
        "a message after the removal is not pushed",
      );
    },
  );

  t.test(
    `messages that a client sends over ${name} without waiting for replies are stored in the order of sending`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const channel = await world.newGroup([ann, ben]);
      const peer = await world.join(t, ben);
      const client = await join(t, ann);
      const texts = range(1, SENDS).map((number) => `text ${number}`);
      const seqs = await Promise.all(texts.map((text) => client.send(channel, text)));
      t.same(seqs, range(1, SENDS));
      t.same(await untilReceived(peer, SENDS), texts);
    },
  );

  t.test(
    `a payload up to the size limit is accepted, and a larger one is refused, over ${name}`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const channel = await world.newGroup([ann, ben]);
      const [client, peer] = [await join(t, ann), await join(t, ben)];
      const largest = "ü".repeat((MAX_PAYLOAD_BYTES - EMPTY_TEXT_BYTES) >> 1);
      const refusal = await refusalOf(client.send(channel, `${largest}ü`));
      t.equal(refusal.reason, PAYLOAD);
      t.equal(await client.send(channel, largest), 1);
      t.ok((await peer.nextMessage()).text === largest, "the complete text arrives");
    },
  );

  t.test(
    `two devices of a user receive messages, a new session replaces the old one of its device, and both devices can be logged out, over ${name}`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const phone = await join(t, ann, { deviceId: "phone" });
      const tablet = await join(t, ann, { deviceId: "tablet" });
      await phone.send(person(ben), "from the phone");
      await world.send(ben, person(ann), "to both");
      t.match(await tablet.nextMessage(), {
        ...{ channel: person(ben), fromUid: ann, text: "from the phone" },
      });
      t.match(await tablet.nextMessage(), { fromUid: ben, text: "to both" });
      t.match(await phone.nextMessage(), { fromUid: ben, text: "to both" });

      const replacing = await join(t, ann, { deviceId: "phone" });
      const replaced = { code: closeCode(format, 4202) };
      t.match(await phone.closed, replaced, "the device's old session is replaced");
      await world.send(ben, person(ann), "to the new one");
      t.match(await replacing.nextMessage(), { text: "to the new one" });

      await world.ok("/user/device_quit", { uid: ann, device_flag: 0 });
      for (const device of [replacing, tablet])
        t.match(
          await device.closed,
          { code: closeCode(format, 4204) },
          "every device is logged out",
        );
      const refusal = await refusalOf(join(t, ann, { token: `token-${ann}` }));
      t.equal(refusal.reason, AUTH_FAILED, "the device's token is revoked");
    },
  );

  t.test(
    `a client that uses ${name} but stops reading its socket is disconnected, and the messages it has received have no gap`,
    async (t) => {
      const [ann, ben] = [world.name("ann"), world.name("ben")];
      const channel = await world.newGroup([ann, ben]);
      const client = await join(t, ben);
      client.pause();
      await sendUntilOffline(world, { from: ann, to: ben, channel });
      client.resume();
      const { code } = await client.closed;
      t.ok(code === 4001 || code === 1006, `the close code is ${code}`);
      const seqs = await remaining(client);
      t.same(seqs, range(1, seqs.length));
    },
  );

  t.test(`a message with no_persist is pushed with seq 0 over ${name}`, async (t) => {
    const [ann, ben] = [world.name("ann"), world.name("ben")];
    const client = await join(t, ann);
    const header = { no_persist: 1 };
    await world.send(ben, person(ann), "fleeting", { header });
    await world.send(ben, person(ann), "stored");
    t.match(await client.nextMessage(), { messageSeq: 0, text: "fleeting" });
    t.match(await client.nextMessage(), { messageSeq: 1, text: "stored" });
  });
}

t.test(
  "members with different wire formats receive each other's messages in the same order",
  async (t) => {
    const uids = FORMATS.map(() => world.name("ann"));
    const channel = await world.newGroup(uids);
    const clients = await Promise.all(
      FORMATS.map((format, at) => joinFormat(t, world, format, uids[at] ?? "")),
    );
    const seqsOfClients = await Promise.all(
      clients.map((client) =>
        Promise.all(range(1, EACH).map((number) => client.send(channel, `${number}`))),
      ),
    );
    const expected = range(1, EACH * clients.length);
    t.same(
      seqsOfClients.flat().toSorted((a, b) => a - b),
      expected,
    );
    for (const [at, client] of clients.entries()) {
      const others = expected.filter((seq) => !seqsOfClients[at]?.includes(seq));
      const received: number[] = [];
      for (const _ of others) received.push((await client.nextMessage()).messageSeq);
      t.same(
        received,
        others,
        `${FORMATS[at]?.name} receives every other member's message in order`,
      );
    }
  },
);
