// Folders of processes that were killed at random commits are read by another process before they
// are opened, and no folder is refused. JINDOU_TEST_FOLDERS sets the number of folders.

import { randomInt } from "node:crypto";
import { once } from "node:events";
import { t } from "../../support/suite.ts";
import { volume } from "../../support/volume.ts";
import { storeIn, testFolder } from "./folder.ts";
import { startChild } from "./process.ts";

const FOLDERS = volume(1000, "JINDOU_TEST_FOLDERS", 8);
/** Number of kills after which a folder is replaced by a new one. */
const KILLS_PER_FOLDER = 10;
const MAX_COMMITS = 80;
/** Number of folders that are tested at the same time. */
const LANES = 2;

t.test(
  `a data folder can be opened after each of ${FOLDERS} kills of a process at a random commit`,
  { timeout: 1_100_000 },
  async (t) => {
    const checks: number[] = [];
    let left = FOLDERS;
    const runLane = async () => {
      for (let path = testFolder(t), kills = 0; left-- > 0; kills++) {
        if (kills % KILLS_PER_FOLDER === 0) path = testFolder(t);
        const child = startChild(t, [path, "die", String(randomInt(1, MAX_COMMITS))]);
        const [, signal] = await once(child.process, "exit");
        if (signal !== "SIGKILL") t.fail(`the process ended with ${signal}`);
        const store = storeIn(path, {
          onError(error, what) {
            if (what !== "An unfinished or damaged last write was removed from the WAL")
              throw error;
          },
          onNotice(facts, what) {
            if (what === "The database was checked after an unclean stop")
              checks.push((facts as { readonly ms: number }).ms);
          },
        });
        await store.start();
        await store.close();
      }
    };
    await Promise.all(Array.from({ length: LANES }, runLane));
    t.equal(checks.length, FOLDERS, "every folder was checked, and none was refused");
    checks.sort((a, b) => a - b);
    t.comment(`ms of a check: median ${checks[FOLDERS >> 1]}, longest ${checks.at(-1)}`);
  },
);
