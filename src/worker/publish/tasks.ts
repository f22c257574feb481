/** The control tasks of this folder, as src/worker/tasks.ts calls them. */
import type { PublishTasks, TaskJob } from '../tasks.ts';
import { cleanup } from './cleanup.ts';
import type { PublishContext } from './context.ts';
import { PublishError } from './errors.ts';
import { finalize } from './finalize.ts';
import { publish, publishedSoFar } from './publish.ts';

/** A deleted job's finished shards are published if that takes no longer. */
const PUBLISH_BEFORE_CLEANUP_MILLISECONDS = 10_000;

export type PublishTaskDependencies = Pick<
  PublishContext,
  'settings' | 'failPoint' | 'clock' | 'logger' | 'newId' | 'random'
>;

export function createPublishTasks(deps: PublishTaskDependencies): PublishTasks {
  const contextOf = ({ descriptor, layout, stores, signal }: TaskJob): PublishContext => ({
    ...deps,
    ...{ store: stores.output, layout, jobUID: descriptor.uid, signal },
  });
  return {
    publish: async (job) => {
      const context = contextOf(job);
      try {
        return { published: await publish(context) };
      } catch (error) {
        if (!(error instanceof PublishError) || error.code !== 'Superseded') throw error;
        // Another publisher does this work: no problem of the job. What it has done so far is what there is to report.
        return { published: await publishedSoFar(context) };
      }
    },
    finalize: async (job, cause) => {
      const { namespace, name, model, endpoint } = job.descriptor;
      const named = { namespace, name, model, endpoint };
      return { final: await finalize({ context: contextOf(job), job: named, cause }) };
    },
    cleanup: (job, publishFirst) =>
      cleanup({
        context: contextOf(job),
        publishForMilliseconds: publishFirst ? PUBLISH_BEFORE_CLEANUP_MILLISECONDS : 0,
      }),
  };
}
