-- title: sae reconstruction
-- topic: sparse autoencoders
-- question: How faithful and sparse are the SAEs?
-- aliases: sparse autoencoders, sae metrics, davis table 3, sae, saes, sparse autoencoder, l0, loss recovered, dead
--       latents, dead features, explained variance, reconstruction, active latents
-- paper: Davis et al. 2026, Table 3 and section 4.2
-- kinds: sae, imported-sae
-- made by: chessreg run sae
-- default: checkpoint, layer, architecture, expansion; loss_recovered, l0, explained_variance; n
-- columns:
--   checkpoint: the model
--   hook_point: hook point of the activations
--   layer: its layer, 0-based
--   architecture: of the autoencoder
--   features [latents]: of its code
--   expansion: latents for each dimension
--   l1_coefficient: the sparsity penalty λ
--   train_tokens [tokens]: trained on; none for an imported SAE
--   n [tokens]: measured on: held-out tokens, or the bundled games for an imported SAE
--   ce_without_sae [nats]: cross-entropy of the next token
--   ce_without_sae_low [nats]: its interval's lower end; games are resampled
--   ce_without_sae_high [nats]: the upper end
--   ce_with_sae [nats]: the same with the reconstruction in place of the residual
--   ce_with_sae_low [nats]: its interval's lower end; games are resampled
--   ce_with_sae_high [nats]: the upper end
--   ce_zero_ablation [nats]: the same with 0 in its place
--   ce_mean_ablation [nats]: the same with the mean training residual in its place
--   loss_recovered: 1 with the model's own cross-entropy, 0 with that of zero ablation
--   loss_recovered_low: its interval's lower end; games are resampled
--   loss_recovered_high: the upper end
--   l0 [latents]: on at a token
--   l0_low [latents]: its interval's lower end; games are resampled
--   l0_high [latents]: the upper end
--   l1: sum of a token's latents, of residuals scaled to a mean norm of the root of d_model
--   sse_per_token: squared error of a token, summed over dimensions
--   mse_per_dim: the same divided by d_model
--   cosine: of residual and reconstruction
--   explained_variance: 1 minus the error's variance as a share of the residual's
--   explained_variance_low: its interval's lower end; games are resampled
--   explained_variance_high: the upper end
--   dead_fraction: latents that did not fire in the last --dead-tokens of the training
--   silent_fraction: latents that fire at no held-out token
--   overlap: whole games measured on that the model or the autoencoder was trained on
--   run: the run
--   done [units]: autoencoders that are there
--   planned [units]: autoencoders of the run
--   checkpoint_id [hidden]: the model's id
--   run_id [hidden]: the run's id
-- plot: sae reconstruction by layer
--   aliases: davis table 3 by layer
--   x: layer
--   y: explained_variance
--   series: expansion, run
-- plot: loss recovered by sae
--   x: layer
--   y: loss_recovered
--   series: expansion, run
-- plot: sparsity of saes
--   x: layer
--   y: l0
--   series: expansion, run

-- statement: measured
SELECT run_id, unit, any_value(attempt_id) AS attempt_id, whole(max(n) FILTER (name = 'l0')) AS n,
       whole(max(n) FILTER (name = 'dead_fraction')) AS train_tokens,
       max(value) FILTER (name = 'ce_without_sae') AS ce_without_sae,
       max(low) FILTER (name = 'ce_without_sae') AS ce_without_sae_low,
       max(high) FILTER (name = 'ce_without_sae') AS ce_without_sae_high,
       max(value) FILTER (name = 'ce_with_sae') AS ce_with_sae,
       max(low) FILTER (name = 'ce_with_sae') AS ce_with_sae_low,
       max(high) FILTER (name = 'ce_with_sae') AS ce_with_sae_high,
       max(value) FILTER (name = 'ce_zero_ablation') AS ce_zero_ablation,
       max(value) FILTER (name = 'ce_mean_ablation') AS ce_mean_ablation,
       max(value) FILTER (name = 'loss_recovered') AS loss_recovered,
       max(low) FILTER (name = 'loss_recovered') AS loss_recovered_low,
       max(high) FILTER (name = 'loss_recovered') AS loss_recovered_high,
       max(value) FILTER (name = 'l0') AS l0, max(low) FILTER (name = 'l0') AS l0_low,
       max(high) FILTER (name = 'l0') AS l0_high,
       max(value) FILTER (name = 'l1') AS l1,
       max(value) FILTER (name = 'sse_per_token') AS sse_per_token,
       max(value) FILTER (name = 'mse_per_dim') AS mse_per_dim,
       max(value) FILTER (name = 'cosine') AS cosine,
       max(value) FILTER (name = 'explained_variance') AS explained_variance,
       max(low) FILTER (name = 'explained_variance') AS explained_variance_low,
       max(high) FILTER (name = 'explained_variance') AS explained_variance_high,
       max(value) FILTER (name = 'dead_fraction') AS dead_fraction,
       max(value) FILTER (name = 'silent_fraction') AS silent_fraction
FROM all_saes_statistic GROUP BY ALL

-- statement: base
SELECT dense_rank() OVER (ORDER BY coalesce(c.place, 1e9), s.layer, s.hook_point, s.expansion, run_place(s.run_id),
                                   s.unit) AS cell,
       r.run, s.run_id, s.unit, m.attempt_id, s.checkpoint_id, c.checkpoint, s.hook_point, s.layer, s.architecture,
       s.features, s.expansion, r.done, r.planned, m.* EXCLUDE (run_id, unit, attempt_id)
FROM saes AS s
JOIN scoped AS r ON r.run_id = s.run_id
LEFT JOIN checkpoints AS c ON c.checkpoint_id = s.checkpoint_id
LEFT JOIN measured AS m ON m.run_id = s.run_id AND m.unit = s.unit

-- statement: table
SELECT b.cell, b.checkpoint, b.hook_point, b.layer, b.architecture, b.features, b.expansion,
       k.value AS l1_coefficient, b.train_tokens, b.n, b.ce_without_sae, b.ce_without_sae_low, b.ce_without_sae_high,
       b.ce_with_sae, b.ce_with_sae_low, b.ce_with_sae_high, b.ce_zero_ablation, b.ce_mean_ablation, b.loss_recovered,
       b.loss_recovered_low, b.loss_recovered_high, b.l0, b.l0_low, b.l0_high, b.l1, b.sse_per_token, b.mse_per_dim,
       b.cosine, b.explained_variance, b.explained_variance_low, b.explained_variance_high, b.dead_fraction,
       b.silent_fraction, coalesce(o.overlap, 'model unknown') AS overlap, b.run, b.done, b.planned, b.checkpoint_id,
       b.run_id
FROM base AS b
LEFT JOIN metric_point AS k ON k.run_id = b.run_id AND k.unit = b.unit AND k.name = 'l1_coefficient' AND k.step = 0
LEFT JOIN shared_games AS o ON o.run_id = b.run_id
ORDER BY b.cell

-- statement: rows
SELECT b.run || ':' || b.unit AS board, b.run, b.unit, p.item, p.value AS strongest, p.frequency, b.hook_point, b.run_id
FROM base AS b JOIN sae_prediction AS p ON p.run_id = b.run_id AND p.unit = b.unit
ORDER BY run_place(b.run_id), b.unit, p.value DESC, p.item
