// The lookup of the message that a retry repeats.

import { join } from "node:path";
import { ChannelRows } from "../../../src/store/embedded/engine/channel-rows.ts";
import { Frame } from "../../../src/store/embedded/engine/frame.ts";
import { Memtable } from "../../../src/store/embedded/engine/memtable.ts";
import { openTables } from "../../../src/store/embedded/engine/tables.ts";
import { Assigner, MessageIds } from "../../../src/store/embedded/steps/assigner.ts";
import { DedupeIndex } from "../../../src/store/embedded/steps/dedupe.ts";
import { retryOf } from "../../contract/store-fixture.ts";
import { t } from "../../support/suite.ts";
import { testFolder } from "./folder.ts";

t.test(
  "looking up a message does not load its channel into memory, but assigning a seq to the message does",
  async (t) => {
    const tables = openTables(join(testFolder(t), "lmdb"));
    t.teardown(() => tables.env.close());
    const rows = new ChannelRows(tables);
    const memtable = new Memtable((key) => rows.get(key), {
      ...{ maxBytes: 1_000_000, maxRecords: 1000 },
    });
    const assigner = new Assigner({
      ...{ memtable, rows, ids: new MessageIds(0), frame: new Frame() },
      events: { isOn: false },
      dedupe: new DedupeIndex(tables, 1000),
    });
    const draft = retryOf("n");
    t.equal(assigner.findFirst(draft, 0), undefined);
    t.equal(memtable.peek(draft.key), undefined);
    assigner.begin(0);
    const { record } = assigner.assign(draft, 0);
    t.equal(memtable.peek(draft.key)?.assigned, 1);
    t.equal(assigner.findFirst(draft, 0), record);
  },
);
