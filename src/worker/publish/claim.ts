/**
 * Whose output prefix it is. Two jobs with one prefix would overwrite each other's files, so the first claims it by
 * creating an object, and a prefix with files of another job is refused for ever.
 *
 * A claim is removed when its job is cleaned up. One that was left behind (its job was deleted while the store was
 * down) cannot be told from the claim of a job that is about to start, since workers do not see other jobs: it is
 * refused too, and the message says how to remove it by hand.
 */
import { FORMAT_VERSION } from '../../batch/model.ts';
import { hasCode, headIfThere, ifThere, JOB_UID, uriOf, type PublishContext } from './context.ts';
import { PublishError } from './errors.ts';

interface Claim {
  formatVersion: number;
  jobUID: string;
  namespace: string;
  name: string;
}

type ClaimContext = Pick<PublishContext, 'store' | 'layout' | 'jobUID' | 'signal' | 'failPoint'>;

/** A published object under our prefix that another job, or nobody we know, wrote. */
export interface ForeignObject {
  key: string;
  /** undefined where the object does not name a job. */
  jobUID: string | undefined;
}

export async function findForeignOutput(
  context: Pick<PublishContext, 'store' | 'layout' | 'jobUID' | 'signal'>,
): Promise<ForeignObject | undefined> {
  const { store, layout, jobUID, signal } = context;
  for (const key of [layout.results, layout.errors, layout.manifest]) {
    const info = await headIfThere(store, key, signal);
    const owner = info?.metadata?.[JOB_UID];
    if (info === undefined || owner === jobUID) continue;
    // Under our own claim, a file that names nobody is one of ours that lost its metadata (see position.ts).
    if (owner === undefined && (await ownsPrefix(context))) continue;
    return { key, jobUID: owner };
  }
  return undefined;
}

/** @throws PublishError OutputExists, naming the object. */
export async function refuseForeignOutput(
  context: Pick<PublishContext, 'store' | 'layout' | 'jobUID' | 'signal'>,
): Promise<void> {
  const foreign = await findForeignOutput(context);
  if (foreign === undefined) return;
  const whose =
    foreign.jobUID === undefined
      ? 'was not written by this job'
      : `holds the output of job ${foreign.jobUID}`;
  throw new PublishError(
    'OutputExists',
    `${uriOf(context.store, foreign.key)} ${whose} and is not overwritten; choose another output prefix or remove it`,
  );
}

/**
 * Makes the prefix this job's. Repeating it is harmless. Where the store does not honour If-None-Match, two jobs
 * that start in the same moment may both pass; the publisher's look at the files' owner then stops the second.
 * @throws PublishError OutputExists
 */
export async function claimPrefix(
  context: ClaimContext,
  job: { namespace: string; name: string },
): Promise<void> {
  const { store, layout, jobUID, signal, failPoint } = context;
  let claim = await readClaim(context);
  if (claim === undefined) {
    // Foreign output is looked for before and after the claim: before, so that a refused job leaves no claim behind.
    await refuseForeignOutput(context);
    const mine: Claim = { formatVersion: FORMAT_VERSION, jobUID, ...job };
    const conditions = await store.honoursConditions(`${layout.work}probe/`);
    await failPoint('claim.absent');
    try {
      await store.put(layout.claim, Buffer.from(`${JSON.stringify(mine)}\n`), {
        ...(conditions.put ? { ifNoneMatch: true } : {}),
        metadata: { [JOB_UID]: jobUID },
        contentType: 'application/json',
        signal,
      });
    } catch (error) {
      if (!hasCode(error, 'PreconditionFailed')) throw error;
    }
    await failPoint('claim.written');
    claim = await readClaim(context);
  }
  if (claim?.jobUID !== jobUID) {
    const whose =
      claim === undefined ? 'another job' : `job ${claim.namespace}/${claim.name} (${claim.jobUID})`;
    throw new PublishError(
      'OutputExists',
      `${uriOf(store, layout.claim)} claims this output prefix for ${whose}; ` +
        `choose another prefix, or remove that object if the job is gone`,
    );
  }
  await refuseForeignOutput(context);
}

/** Whether the prefix is this job's; false also where nobody has claimed it. */
export async function ownsPrefix(context: Pick<PublishContext, 'store' | 'layout' | 'jobUID' | 'signal'>) {
  return (await readClaim(context))?.jobUID === context.jobUID;
}

async function readClaim({
  store,
  layout,
  signal,
}: Pick<PublishContext, 'store' | 'layout' | 'signal'>): Promise<Claim | undefined> {
  const read = await ifThere(store.getBytes(layout.claim, { signal }));
  if (read === undefined) return undefined;
  const unreadable = { formatVersion: 0, jobUID: 'unknown', namespace: '?', name: '?' };
  try {
    const claim = JSON.parse(read.bytes.toString()) as Partial<Claim> | null;
    return typeof claim?.jobUID === 'string' ? { ...unreadable, ...claim } : unreadable;
  } catch {
    return unreadable;
  }
}
