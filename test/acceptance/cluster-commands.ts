// Sends commands while nodes and Redis fail. A backend repeats each command until it is answered,
// and devices connected to any node receive and acknowledge the commands. The ledger records the
// commands that each user was sent, was shown and has acknowledged.

import { setTimeout as pause } from "node:timers/promises";
import { textPayload } from "../support/broker.ts";
import type { Random } from "../support/random.ts";
import type { ClusterNodes } from "./cluster-nodes.ts";
import { CommandDevice } from "./command-device.ts";
import { CommandLedger } from "./command-ledger.ts";

const SQUAD = { channel_id: "squad", channel_type: 2 };
const BOSS = "boss";
const USERS = ["ann", "ben", "cat"];
const EVERY_MS = 30;
const SHOWN_MS = 120_000;

export class ClusterCommands {
  readonly ledger = new CommandLedger();
  readonly #nodes: ClusterNodes;
  readonly #devices: readonly CommandDevice[];
  #running: Promise<unknown> = Promise.resolve();

  constructor(nodes: ClusterNodes, random: Random) {
    this.#nodes = nodes;
    const context = { broker: nodes, ledger: this.ledger, random };
    this.#devices = USERS.flatMap((uid) =>
      ["phone", "laptop"].map((kind) => new CommandDevice(`${uid}'s ${kind}`, uid, context)),
    );
  }

  /** Creates the group and starts the devices. */
  async prepare(): Promise<void> {
    await this.#nodes.createGroup(SQUAD.channel_id, [BOSS, ...USERS]);
    const runs = this.#devices.map((device, at) => device.run(at % 2 === 0));
    this.#running = Promise.all(runs);
    this.#running.catch(() => undefined); // `finish` reports the error
  }

  /** Sends commands until `isOver`. Resolves when every command sent was answered. */
  async run(isOver: () => boolean): Promise<void> {
    for (let count = 1; !isOver(); count++) {
      const no = `order-${count}`;
      const body = {
        ...{ ...SQUAD, from_uid: BOSS, client_msg_no: no },
        payload: textPayload(no),
        header: { sync_once: 1 },
      };
      this.ledger.sent(no, USERS, body);
      const sent = await this.#nodes.ok("/message/send", body);
      this.ledger.answered(no, sent.message_id, sent.message_seq);
      await pause(EVERY_MS);
    }
  }

  /** Waits until every user was shown every command, at most `SHOWN_MS`. Returns the problems. */
  async finish(): Promise<readonly string[]> {
    const deadline = Date.now() + SHOWN_MS;
    const isDone = () => USERS.every((uid) => this.ledger.hasAll(uid));
    while (!isDone() && Date.now() < deadline) await pause(20);
    for (const device of this.#devices) device.stop();
    await this.#running;
    for (const uid of USERS)
      if (!this.ledger.hasAll(uid)) this.ledger.problems.push(`${uid} was not shown everything`);
    return this.ledger.problems;
  }
}
