// Waits for a promise for a limited time.

/**
 * Settles like `work`. If `work` has not settled after `ms` milliseconds, resolves, and `work`
 * continues.
 */
export async function waitAtMost(work: Promise<unknown>, ms: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const limit = new Promise<void>((resolve) => {
    // Without `setImmediate`, a timer that fires late would win over input that has arrived but has
    // not been read yet.
    timer = setTimeout(() => setImmediate(resolve), ms);
  });
  try {
    await Promise.race([work, limit]);
  } finally {
    clearTimeout(timer);
  }
}
