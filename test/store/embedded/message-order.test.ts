// What the embedded store promises of message ids beyond the contract: one counter serves all channels.

import t from "tap";
import type { MessageDraft } from "../../../src/broker/ports.ts";
import { draftOf } from "../../contract/store-bench.ts";
import { openStore, testFolder } from "./folder.ts";

t.test(
  "message ids grow from channel to channel, also over a restart and with a clock that goes back",
  async (t) => {
    const folder = testFolder(t);
    let nowMs = Date.UTC(2026, 0, 1);
    const open = () => openStore(t, folder, { clock: () => nowMs });
    let store = await open();
    const reopen = async () => {
      await store.close();
      store = await open();
    };
    const take = async (over?: Partial<MessageDraft>) =>
      (await store.append(draftOf(over))).messageId;
    const unstored = { header: { noPersist: true, redDot: false } };
    const ids = [await take(), await take({ channel: { id: "h", type: 2 } })];
    nowMs -= 3_600_000;
    ids.push(await take(), await take(unstored));
    await reopen();
    nowMs -= 3_600_000;
    ids.push(await take(unstored), await take(), await take(unstored));
    await reopen();
    ids.push(await take());
    t.same(
      ids,
      [...new Set(ids)].sort((a, b) => a - b),
    );
  },
);
